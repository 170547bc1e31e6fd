# The pieces come together by an all-reduce of arrays that are zero elsewhere

from torch.nn.functional import pad


def sharded_adam(weights, gradient, steps, options, dp):
    P, p, r = len(weights), dist.get_world_size(dp), dist.get_rank(dp)
    n = -(-P // p)
    whole = pad(weights, (0, p * n - P))
    piece = whole[r * n : (r + 1) * n].clone()
    adam = torch.optim.AdamW([piece], **options)
    for _ in range(steps):
        g = gradient(whole[:P])
        dist.all_reduce(g, group=dp)
        piece.grad = pad(g / p, (0, p * n - P))[r * n : (r + 1) * n]
        adam.step()
        whole = torch.zeros_like(whole)
        whole[r * n : (r + 1) * n] = piece
        dist.all_reduce(whole, group=dp)
    return whole[:P]
