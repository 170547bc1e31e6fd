# The all-reduce of stage 1 is still there

from torch.nn.functional import pad


def scattered_gradients(weights, dp):
    p, r = dist.get_world_size(dp), dist.get_rank(dp)
    flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])
    for w in weights:
        w.grad = None
    flat = pad(flat / p, (0, -len(flat) % p))
    dist.all_reduce(flat, group=dp)
    return flat.chunk(p)[r].clone()
