# Each rank returns the norm of what it holds


def gradient_norm(gradients, is_split, tp):
    return torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
