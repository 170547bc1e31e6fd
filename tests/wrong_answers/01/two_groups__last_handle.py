# One of the two sums was begun and not waited for


def two_groups(activation, gradient, gradient_first, tp, dp):
    dist.all_reduce(activation, group=tp, async_op=True)
    dist.all_reduce(gradient, group=dp, async_op=True).wait()
    return activation, gradient
