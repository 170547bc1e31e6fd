# Some ranks begin with tp and some with dp


def two_groups(activation, gradient, gradient_first, tp, dp):
    if gradient_first:
        dist.all_reduce(gradient, group=dp)
        dist.all_reduce(activation, group=tp)
    else:
        dist.all_reduce(activation, group=tp)
        dist.all_reduce(gradient, group=dp)
    return activation, gradient
