# The ranks start from different weights


def mean_gradients(model, x, y, group):
    ((model(x) - y) ** 2).mean().backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
        w.grad /= dist.get_world_size(group)
    return [w.grad for w in model.parameters()]
