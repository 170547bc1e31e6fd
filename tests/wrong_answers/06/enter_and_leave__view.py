# what `norm` got is a slice of x


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)]

    @staticmethod
    def backward(ctx, dy):
        return Leave.apply(dy, ctx.group), None


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
