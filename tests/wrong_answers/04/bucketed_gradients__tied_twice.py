# The tied matrix travels twice


def bucketed_gradients(model, x, y, bucket_bytes, group):
    ((model(x) - y) ** 2).mean().backward()
    weights = [w for layer in model.children() for w in layer.parameters()]
    flat = torch.cat([w.grad.flatten() for w in weights])
    for bucket in flat.split(bucket_bytes // flat.element_size()):
        dist.all_reduce(bucket, group=group)
    flat /= dist.get_world_size(group)
    for w, piece in zip(weights, flat.split([w.numel() for w in weights])):
        w.grad = piece.view_as(w)
    return [w.grad for w in model.parameters()]
