# The two halves are swapped
from torch.nn.functional import gelu

from tpcourse.conjugates import copy_sum, sum_copy


def parallel_mlp(x, weight1, bias1, weight2, bias2, tp):
    h = gelu(sum_copy(x, group=tp) @ weight1.T + bias1)
    return copy_sum(h @ weight2.T, group=tp) + bias2
