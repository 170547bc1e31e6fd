# after the loop nothing was averaged over the ranks


def accumulated_gradients(model, xs, ys, group):
    for x, y in zip(xs, ys):
        (((model(x) - y) ** 2).mean() / len(xs)).backward()
    return [w.grad for w in model.parameters()]
