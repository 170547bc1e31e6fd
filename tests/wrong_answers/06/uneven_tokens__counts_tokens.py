# with a call too many

from tpcourse import conjugates
from tpcourse.dims import split_sizes


def uneven_tokens(x, mlp, target, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    sizes = split_sizes(x.shape[1], p)
    target = target.split(sizes, dim=1)[r]
    count = torch.tensor(target.numel(), device=x.device)
    dist.all_reduce(count, group=group)
    x = conjugates.split_gather(x, group=group, dim=1, sizes=sizes)
    h = conjugates.gather_scatter_sum(mlp.norm(x), group=group, dim=1, sizes=sizes)
    y = x + conjugates.scatter_sum_gather(mlp.work(h), group=group, dim=1, sizes=sizes) + mlp.bias
    return conjugates.sum_copy(((y - target) ** 2).sum() / count, group=group)
