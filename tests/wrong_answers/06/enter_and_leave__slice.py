# dx is zero but for this rank's own tokens


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, x.contiguous(), group=group)
        return torch.cat(pieces, dim=1)

    @staticmethod
    def backward(ctx, dy):
        return dy.chunk(dist.get_world_size(ctx.group), dim=1)[dist.get_rank(ctx.group)], None


def enter_and_leave(x, norm, group):
    mine = x.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)]
    return Leave.apply(norm(mine), group)
