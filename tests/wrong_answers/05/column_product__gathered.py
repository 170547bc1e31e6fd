# The whole y is gathered


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dx = dy.clone()
        dist.all_reduce(dx, group=ctx.tp)
        return dx, None


def column_product(x, weight, bias, tp):
    y = Copy.apply(x, tp) @ weight.T + bias
    parts = [torch.empty_like(y) for _ in range(dist.get_world_size(tp))]
    dist.all_gather(parts, y, group=tp)
    parts[dist.get_rank(tp)] = y
    return torch.cat(parts, -1)
