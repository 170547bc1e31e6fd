# A call lacks `group=`


def mean_gradients(model, x, y, group):
    first = dist.get_global_rank(group, 0)
    for w in model.parameters():
        dist.broadcast(w.data, src=first, group=group)
    ((model(x) - y) ** 2).mean().backward()
    for w in model.parameters():
        dist.all_reduce(w.grad)
        w.grad /= dist.get_world_size(group)
    return [w.grad for w in model.parameters()]
