# The last T % p tokens are on no rank

from tpcourse import conjugates


def uneven_tokens(x, mlp, target, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    n = x.shape[1] // p
    x, target = x[:, : n * p], target[:, : n * p]
    count, target = target.numel(), target.split(n, dim=1)[r] if n else target
    x = conjugates.split_gather(x, group=group, dim=1)
    h = conjugates.gather_scatter_sum(mlp.norm(x), group=group, dim=1)
    y = x + conjugates.scatter_sum_gather(mlp.work(h), group=group, dim=1) + mlp.bias
    return conjugates.sum_copy(((y - target) ** 2).sum() / count, group=group)
