# Not every handle is waited for


def accumulated_gradients(model, xs, ys, group):
    p = dist.get_world_size(group)
    for x, y in zip(xs, ys):
        (((model(x) - y) ** 2).mean() / len(xs) / p).backward()
    for w in model.parameters():
        handle = dist.all_reduce(w.grad, group=group, async_op=True)
    handle.wait()
    return [w.grad for w in model.parameters()]
