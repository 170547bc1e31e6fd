# There are fewer pieces than ranks

from tpcourse import conjugates


def uneven_tokens(x, mlp, target, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    sizes = [piece.shape[1] for piece in x.chunk(p, dim=1)]
    count, target = target.numel(), target.split(sizes, dim=1)[r]
    x = conjugates.split_gather(x, group=group, dim=1, sizes=sizes)
    h = conjugates.gather_scatter_sum(mlp.norm(x), group=group, dim=1, sizes=sizes)
    y = x + conjugates.scatter_sum_gather(mlp.work(h), group=group, dim=1, sizes=sizes) + mlp.bias
    return conjugates.sum_copy(((y - target) ** 2).sum() / count, group=group)
