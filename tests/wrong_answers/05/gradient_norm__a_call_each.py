# more travels than one number


def gradient_norm(gradients, is_split, tp):
    squares = [g.square().sum() for g in gradients]
    for square, split in zip(squares, is_split):
        if split:
            dist.all_reduce(square, group=tp)
    return torch.stack(squares).sum().sqrt()
