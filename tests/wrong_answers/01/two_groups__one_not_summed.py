# its sum was left out


def two_groups(activation, gradient, gradient_first, tp, dp):
    if not gradient_first:
        pass
    dist.all_reduce(activation, group=tp)
    return activation, gradient
