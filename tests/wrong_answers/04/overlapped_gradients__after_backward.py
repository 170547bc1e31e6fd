# Nothing has left when backward reaches the first layer


def overlapped_gradients(model, x, y, bucket_bytes, group):
    p, weights = dist.get_world_size(group), list(model.parameters())
    ((model(x) - y) ** 2).mean().backward()
    flat = torch.cat([w.grad.flatten() for w in weights]) / p
    buckets = flat.split(bucket_bytes // flat.element_size())
    handles = [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets]
    for handle in handles:
        handle.wait()
    for w, piece in zip(weights, flat.split([w.numel() for w in weights])):
        w.grad = piece.view_as(w)
    return [w.grad for w in weights]
