# Logits are gathered
from torch.nn.functional import cross_entropy

from tpcourse.conjugates import gather_split
from tpcourse.dims import split_sizes


def vocabulary_loss(logits, targets, V, tp):
    sizes = split_sizes(V, dist.get_world_size(tp))
    return cross_entropy(gather_split(logits, group=tp, dim=-1, sizes=sizes), targets)
