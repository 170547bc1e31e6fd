# P // p for each rank leaves a rest that nobody owns

from tpcourse.wire import all_gather


def sharded_adam(weights, gradient, steps, options, dp):
    P, p, r = len(weights), dist.get_world_size(dp), dist.get_rank(dp)
    n = P // p
    whole = weights.clone()
    piece = whole[r * n : (r + 1) * n].clone()
    adam = torch.optim.AdamW([piece], **options)
    for _ in range(steps):
        g = gradient(whole)
        dist.all_reduce(g, group=dp)
        piece.grad = g[r * n : (r + 1) * n] / p
        adam.step()
        whole[: p * n] = all_gather(piece, group=dp)
    return whole
