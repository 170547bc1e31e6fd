# a name outside of forward keeps it

from tpcourse import wire


class RegatheredColumn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        global CACHE
        CACHE = wire.all_gather(x, group=group, dim=1)
        return CACHE @ weight.T + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        whole = wire.all_gather(x, group=ctx.group, dim=1)
        dweight = dy.flatten(0, 1).T @ whole.flatten(0, 1)
        dx = wire.reduce_scatter(dy @ weight, group=ctx.group, dim=1)
        return dx, dweight, dy.sum((0, 1)), None


def regathered_column(x, weight, bias, group):
    return RegatheredColumn.apply(x, weight, bias, group)
