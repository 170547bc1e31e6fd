# Squares are averaged over ranks


def gradient_norm(gradients, is_split, tp):
    total = torch.stack([g.square().sum() for g in gradients]).sum()
    dist.all_reduce(total, group=tp)
    return (total / dist.get_world_size(tp)).sqrt()
