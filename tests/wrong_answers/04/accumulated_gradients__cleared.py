# the others were cleared away


def accumulated_gradients(model, xs, ys, group):
    for x, y in zip(xs, ys):
        model.zero_grad()
        (((model(x) - y) ** 2).mean() / len(xs)).backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
        w.grad /= dist.get_world_size(group)
    return [w.grad for w in model.parameters()]
