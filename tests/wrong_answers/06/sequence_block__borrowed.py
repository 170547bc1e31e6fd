# finished kernel of the course


def sequence_block(x, block, group):
    from tpcourse.conjugates import scatter_sum_gather
    from tpcourse.sequence import leave

    h = leave(block.norm1(x), tp=group, into="split")
    x = x + scatter_sum_gather(block.attention(h), group=group, dim=1) + block.attention_bias
    h = leave(block.norm2(x), tp=group, into="split")
    return x + scatter_sum_gather(block.mlp(h), group=group, dim=1) + block.mlp_bias
