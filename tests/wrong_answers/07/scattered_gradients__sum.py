# The piece is p times too large

from torch.nn.functional import pad

from tpcourse.wire import reduce_scatter


def scattered_gradients(weights, dp):
    flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])
    for w in weights:
        w.grad = None
    return reduce_scatter(pad(flat, (0, -len(flat) % dist.get_world_size(dp))), group=dp)
