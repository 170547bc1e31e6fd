# Attention sees only this rank's tokens

from tpcourse import conjugates


def sequence_block(x, block, group):
    h = block.norm1(x)
    x = x + conjugates.sum_copy(block.attention(h), group=group) + block.attention_bias
    h = block.norm2(x)
    return x + conjugates.sum_copy(block.mlp(h), group=group) + block.mlp_bias
