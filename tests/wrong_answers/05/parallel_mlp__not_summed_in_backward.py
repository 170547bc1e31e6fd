# dx is short by the other ranks' share
from torch.nn.functional import gelu

from tpcourse.conjugates import sum_copy


def parallel_mlp(x, weight1, bias1, weight2, bias2, tp):
    h = gelu(x @ weight1.T + bias1)
    return sum_copy(h @ weight2.T, group=tp) + bias2
