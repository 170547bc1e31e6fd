# gradients were added over the ranks


def accumulated_gradients(model, xs, ys, group):
    for x, y in zip(xs, ys):
        (((model(x) - y) ** 2).mean() / len(xs)).backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
    return [w.grad for w in model.parameters()]
