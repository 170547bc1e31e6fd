# The whole gradient is still alive

from torch.nn.functional import pad

from tpcourse.wire import reduce_scatter


def scattered_gradients(weights, dp):
    p = dist.get_world_size(dp)
    flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])
    for w in weights:
        if w.grad is not None:
            w.grad.zero_()
    return reduce_scatter(pad(flat / p, (0, -len(flat) % p)), group=dp)
