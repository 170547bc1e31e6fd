# torch's own calls take ranks of the world


def mean_gradients(model, x, y, group):
    for w in model.parameters():
        dist.broadcast(w.data, src=0, group=group)
    ((model(x) - y) ** 2).mean().backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
        w.grad /= dist.get_world_size(group)
    return [w.grad for w in model.parameters()]
