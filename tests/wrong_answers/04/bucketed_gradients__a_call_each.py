# every parameter has a call of its own


def bucketed_gradients(model, x, y, bucket_bytes, group):
    ((model(x) - y) ** 2).mean().backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
        w.grad /= dist.get_world_size(group)
    return [w.grad for w in model.parameters()]
