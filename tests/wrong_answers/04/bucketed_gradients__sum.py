# gradients were added over the ranks


def bucketed_gradients(model, x, y, bucket_bytes, group):
    ((model(x) - y) ** 2).mean().backward()
    weights = list(model.parameters())
    flat = torch.cat([w.grad.flatten() for w in weights])
    for bucket in flat.split(bucket_bytes // flat.element_size()):
        dist.all_reduce(bucket, group=group)
    for w, piece in zip(weights, flat.split([w.numel() for w in weights])):
        w.grad = piece.view_as(w)
    return [w.grad for w in model.parameters()]
