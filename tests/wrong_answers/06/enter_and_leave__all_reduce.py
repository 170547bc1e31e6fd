# an all-reduce adds zeros


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(ctx, dy):
        whole = dy.new_zeros(dy.shape[0], dy.shape[1] * dist.get_world_size(ctx.group), dy.shape[2])
        whole.chunk(dist.get_world_size(ctx.group), dim=1)[dist.get_rank(ctx.group)].copy_(dy)
        dist.all_reduce(whole, group=ctx.group)
        return whole, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, x.contiguous(), group=group)
        return torch.cat(pieces, dim=1)

    @staticmethod
    def backward(ctx, dy):
        return Enter.apply(dy, ctx.group), None


def enter_and_leave(x, norm, group):
    return Leave.apply(norm(Enter.apply(x, group)), group)
