# a collective of torch.distributed is not known to autograd


def enter_and_leave(x, norm, group):
    p = dist.get_world_size(group)
    y = norm(x.chunk(p, dim=1)[dist.get_rank(group)])
    pieces = [torch.empty_like(y) for _ in range(p)]
    dist.all_gather(pieces, y.contiguous(), group=group)
    return torch.cat(pieces, dim=1)
