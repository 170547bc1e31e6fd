# is taken off again, and so is its gradient
from torch.nn.functional import gelu, linear

from tpcourse.conjugates import copy_sum, sum_copy


def residual_mlp(x, weight1, bias1, weight2, bias2, tp):
    h = gelu(linear(copy_sum(x, group=tp), weight1, bias1))
    y = linear(h, weight2, bias2)
    return x + sum_copy(y, group=tp) - (dist.get_world_size(tp) - 1) * bias2
