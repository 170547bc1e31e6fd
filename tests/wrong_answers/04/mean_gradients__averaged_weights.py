# The weights were averaged to make them equal


def mean_gradients(model, x, y, group):
    p = dist.get_world_size(group)
    for w in model.parameters():
        dist.all_reduce(w.data, group=group)
        w.data /= p
    ((model(x) - y) ** 2).mean().backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
        w.grad /= p
    return [w.grad for w in model.parameters()]
