# dx is short by the other ranks' share

from tpcourse import wire


class RegatheredColumn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return wire.all_gather(x, group=group, dim=1) @ weight.T + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        whole = wire.all_gather(x, group=ctx.group, dim=1)
        dweight = dy.flatten(0, 1).T @ whole.flatten(0, 1)
        dx = (dy @ weight).chunk(dist.get_world_size(ctx.group), dim=1)[dist.get_rank(ctx.group)]
        return dx, dweight, dy.sum((0, 1)), None


def regathered_column(x, weight, bias, group):
    return RegatheredColumn.apply(x, weight, bias, group)
