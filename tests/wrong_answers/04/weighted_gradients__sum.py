# it was not divided by the number of targets


def weighted_gradients(model, x, y, group):
    ((model(x) - y) ** 2).sum().backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
    return [w.grad for w in model.parameters()]
