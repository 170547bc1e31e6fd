# the sum goes to every rank in full

from tpcourse import conjugates


def add_up(h, group):
    return conjugates.split_gather(conjugates.sum_copy(h, group=group), group=group, dim=1)


def sequence_block(x, block, group):
    h = conjugates.gather_scatter_sum(block.norm1(x), group=group, dim=1)
    x = x + add_up(block.attention(h), group) + block.attention_bias
    h = conjugates.gather_scatter_sum(block.norm2(x), group=group, dim=1)
    return x + add_up(block.mlp(h), group) + block.mlp_bias
