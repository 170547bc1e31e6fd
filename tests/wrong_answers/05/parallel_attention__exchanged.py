# k and v are exchanged
from torch.nn.functional import scaled_dot_product_attention

from tpcourse.conjugates import copy_sum, sum_copy


def parallel_attention(x, q_weight, kv_weight, out_weight, out_bias, tp, shared):
    K = len(kv_weight) // 2
    x = copy_sum(x, group=tp)
    q = (x @ q_weight.T).unflatten(-1, (-1, K)).transpose(1, 2)
    v, k = (x @ copy_sum(kv_weight, group=shared).T)[:, None].chunk(2, -1)
    y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return sum_copy(y.transpose(1, 2).flatten(2) @ out_weight.T, group=tp) + out_bias
