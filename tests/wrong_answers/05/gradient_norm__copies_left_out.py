# Gradients that every rank holds whole are not in the norm


def gradient_norm(gradients, is_split, tp):
    total = torch.stack([g.square().sum() for g, split in zip(gradients, is_split) if split]).sum()
    dist.all_reduce(total, group=tp)
    return total.sqrt()
