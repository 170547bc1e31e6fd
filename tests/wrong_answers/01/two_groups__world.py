# A call runs over the world


def two_groups(activation, gradient, gradient_first, tp, dp):
    dist.all_reduce(activation, group=tp)
    dist.all_reduce(gradient)
    return activation, gradient
