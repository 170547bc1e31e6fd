# the all-reduces are more or larger than the budget allows
from torch.nn.functional import gelu

from tpcourse.conjugates import copy_sum, sum_copy


class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, tp):
        ctx.tp = tp
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, dweight):
        dweight = dweight.clone()
        dist.all_reduce(dweight, group=ctx.tp)
        return dweight / dist.get_world_size(ctx.tp), None


def parallel_mlp(x, weight1, bias1, weight2, bias2, tp):
    h = gelu(copy_sum(x, group=tp) @ weight1.T + bias1)
    return sum_copy(h @ weight2.T, group=tp) + Mean.apply(bias2, tp)
