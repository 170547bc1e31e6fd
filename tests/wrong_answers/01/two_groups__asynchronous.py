# only because the calls are asynchronous


def two_groups(activation, gradient, gradient_first, tp, dp):
    if gradient_first:
        handles = [dist.all_reduce(gradient, group=dp, async_op=True), dist.all_reduce(activation, group=tp, async_op=True)]
    else:
        handles = [dist.all_reduce(activation, group=tp, async_op=True), dist.all_reduce(gradient, group=dp, async_op=True)]
    for handle in handles:
        handle.wait()
    return activation, gradient
