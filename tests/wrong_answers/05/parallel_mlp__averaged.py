# The products of the ranks are averaged
from torch.nn.functional import gelu

from tpcourse.conjugates import copy_sum, sum_copy


def parallel_mlp(x, weight1, bias1, weight2, bias2, tp):
    h = gelu(copy_sum(x, group=tp) @ weight1.T + bias1)
    return sum_copy(h @ weight2.T, group=tp) / dist.get_world_size(tp) + bias2
