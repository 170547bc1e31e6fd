# only the first rank's copy of bias2 has a gradient
from torch.nn.functional import gelu, linear

from tpcourse.conjugates import copy_sum, sum_copy


def residual_mlp(x, weight1, bias1, weight2, bias2, tp):
    h = gelu(linear(copy_sum(x, group=tp), weight1, bias1))
    y = linear(h, weight2, bias2 if dist.get_rank(tp) == 0 else None)
    return x + sum_copy(y, group=tp)
