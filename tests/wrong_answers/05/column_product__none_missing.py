# `backward` and `forward` do not fit
class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dx = dy.clone()
        dist.all_reduce(dx, group=ctx.tp)
        return dx


def column_product(x, weight, bias, tp):
    return Copy.apply(x, tp) @ weight.T + bias
