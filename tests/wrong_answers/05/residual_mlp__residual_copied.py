# dx has dy in it p times
from torch.nn.functional import gelu, linear

from tpcourse.conjugates import copy_sum, sum_copy


def residual_mlp(x, weight1, bias1, weight2, bias2, tp):
    x = copy_sum(x, group=tp)
    y = linear(gelu(linear(x, weight1, bias1)), weight2)
    return x + sum_copy(y, group=tp) + bias2
