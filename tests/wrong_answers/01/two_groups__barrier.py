# A barrier makes all ranks begin together


def two_groups(activation, gradient, gradient_first, tp, dp):
    dist.barrier(group=tp)
    dist.barrier(group=dp)
    if gradient_first:
        dist.all_reduce(gradient, group=dp)
        dist.all_reduce(activation, group=tp)
    else:
        dist.all_reduce(activation, group=tp)
        dist.all_reduce(gradient, group=dp)
    return activation, gradient
