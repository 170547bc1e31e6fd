# One gradient is still partial, that of `mlp_bias`

from tpcourse.conjugates import gather_scatter_sum, gather_split, scatter_sum_gather


def block_and_norm(x, block, group):
    h = gather_scatter_sum(block.norm1(x), group=group, dim=1)
    x = x + scatter_sum_gather(block.attention(h), group=group, dim=1) + block.attention_bias
    h = gather_scatter_sum(block.norm2(x), group=group, dim=1)
    x = x + scatter_sum_gather(block.mlp(h), group=group, dim=1) + block.mlp_bias
    return block.norm3(gather_split(x, group=group, dim=1))


def block_gradients(x, block, dy, group):
    (block_and_norm(x, block, group) * dy).sum().backward()
    partial = [block.norm1.scale.grad, block.norm2.scale.grad, block.attention_bias.grad]
    flat = torch.cat([g.flatten() for g in partial])
    dist.all_reduce(flat, group=group)
    for gradient, total in zip(partial, flat.split([g.numel() for g in partial])):
        gradient.copy_(total.view_as(gradient))
    return [w.grad for w in block.parameters()]
