# The norm runs on all T tokens on every rank

from tpcourse import conjugates
from tpcourse.dims import split_sizes


def uneven_tokens(x, mlp, target, group):
    sizes = split_sizes(x.shape[1], dist.get_world_size(group))
    count, target = target.numel(), target.split(sizes, dim=1)[dist.get_rank(group)]
    x = conjugates.split_gather(x, group=group, dim=1, sizes=sizes)
    h = mlp.norm(conjugates.gather_scatter_sum(x, group=group, dim=1, sizes=sizes))
    y = x + conjugates.scatter_sum_gather(mlp.work(h), group=group, dim=1, sizes=sizes) + mlp.bias
    return conjugates.sum_copy(((y - target) ** 2).sum() / count, group=group)
