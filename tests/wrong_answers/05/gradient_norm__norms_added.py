# Norms are added up


def gradient_norm(gradients, is_split, tp):
    norm = torch.stack([g.square().sum() for g, split in zip(gradients, is_split) if split]).sum().sqrt()
    dist.all_reduce(norm, group=tp)
    whole = torch.stack([g.square().sum() for g, split in zip(gradients, is_split) if not split]).sum()
    return (norm**2 + whole).sqrt()
