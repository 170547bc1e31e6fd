# Each rank returns its own share of the loss

from tpcourse import conjugates
from tpcourse.dims import split_sizes


def uneven_tokens(x, mlp, target, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    sizes = split_sizes(x.shape[1], p)
    count, target = target.numel(), target.split(sizes, dim=1)[r]
    x = conjugates.split_gather(x, group=group, dim=1, sizes=sizes)
    h = conjugates.gather_scatter_sum(mlp.norm(x), group=group, dim=1, sizes=sizes)
    y = x + conjugates.scatter_sum_gather(mlp.work(h), group=group, dim=1, sizes=sizes) + mlp.bias
    return ((y - target) ** 2).sum() / count
