# the average was not copied back


def bucketed_gradients(model, x, y, bucket_bytes, group):
    ((model(x) - y) ** 2).mean().backward()
    flat = torch.cat([w.grad.flatten() for w in model.parameters()])
    for bucket in flat.split(bucket_bytes // flat.element_size()):
        dist.all_reduce(bucket, group=group)
    flat /= dist.get_world_size(group)
    return [w.grad for w in model.parameters()]
