# What every rank holds whole is counted p times


def gradient_norm(gradients, is_split, tp):
    total = torch.stack([g.square().sum() for g in gradients]).sum()
    dist.all_reduce(total, group=tp)
    return total.sqrt()
