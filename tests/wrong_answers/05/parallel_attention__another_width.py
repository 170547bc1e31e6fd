# Scores are scaled by another width than a head's
from torch.nn.functional import scaled_dot_product_attention

from tpcourse.conjugates import copy_sum, sum_copy


def parallel_attention(x, q_weight, kv_weight, out_weight, out_bias, tp, shared):
    K = len(kv_weight) // 2
    x = copy_sum(x, group=tp)
    q = (x @ q_weight.T).unflatten(-1, (-1, K)).transpose(1, 2)
    k, v = (x @ copy_sum(kv_weight, group=shared).T)[:, None].chunk(2, -1)
    scale = x.shape[-1] ** -0.5
    y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=scale)
    return sum_copy(y.transpose(1, 2).flatten(2) @ out_weight.T, group=tp) + out_bias
