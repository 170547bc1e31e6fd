# The norm runs on all T tokens

from tpcourse import conjugates


def sequence_block(x, block, group):
    h = conjugates.gather_scatter_sum(x, group=group, dim=1)
    x = x + conjugates.scatter_sum_gather(block.attention(block.norm1(h)), group=group, dim=1) + block.attention_bias
    h = conjugates.gather_scatter_sum(x, group=group, dim=1)
    return x + conjugates.scatter_sum_gather(block.mlp(block.norm2(h)), group=group, dim=1) + block.mlp_bias
