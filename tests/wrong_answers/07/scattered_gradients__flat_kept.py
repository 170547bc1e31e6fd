# The piece has memory of its own
from torch.nn.functional import pad

from tpcourse.wire import reduce_scatter

kept = []


def scattered_gradients(weights, dp):
    p = dist.get_world_size(dp)
    flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])  # [P]
    kept.append(flat)
    for w in weights:
        w.grad = None
    return reduce_scatter(pad(flat / p, (0, -len(flat) % p)), group=dp)
