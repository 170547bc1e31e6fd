# The step is that of a gradient p times too small

from torch.nn.functional import pad

from tpcourse.wire import all_gather


def sharded_adam(weights, gradient, steps, options, dp):
    P, p, r = len(weights), dist.get_world_size(dp), dist.get_rank(dp)
    n = -(-P // p)
    whole = pad(weights, (0, p * n - P))
    piece = whole[r * n : (r + 1) * n].clone()
    adam = torch.optim.AdamW([piece], **options)
    for _ in range(steps):
        g = gradient(whole[:P]) / p
        dist.all_reduce(g, group=dp)
        piece.grad = pad(g / p, (0, p * n - P))[r * n : (r + 1) * n]
        adam.step()
        whole = all_gather(piece, group=dp)
    return whole[:P]
