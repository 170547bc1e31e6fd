# memory is not: a table of zeros and ones
from torch.nn.functional import one_hot

from tpcourse.conjugates import sum_copy
from tpcourse.dims import split_range


def vocabulary_loss(logits, targets, V, tp):
    start, end = split_range(V, dist.get_world_size(tp), dist.get_rank(tp))
    top = logits.detach().amax(-1)
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=tp)
    chosen = one_hot(targets, V)[:, start:end]
    target_logit = ((logits - top[:, None]) * chosen).sum(-1)
    exp_sum = (logits - top[:, None]).exp().sum(-1)
    exp_sum, target_logit = sum_copy(torch.stack([exp_sum, target_logit]), group=tp)
    return (exp_sum.log() - target_logit).mean()
