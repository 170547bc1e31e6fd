# The hooks are still there

def overlapped_gradients(model, x, y, bucket_bytes, group):
    p, buckets, size = dist.get_world_size(group), [[]], 0
    for w in reversed(list(model.parameters())):
        if size >= bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(w)
        size += w.nbytes
    arrived, flats, handles = set(), [], []

    def ready(w):
        arrived.add(w)
        while len(flats) < len(buckets) and arrived.issuperset(buckets[len(flats)]):
            flats.append(torch.cat([w.grad.flatten() for w in buckets[len(flats)]]) / p)
            handles.append(dist.all_reduce(flats[-1], group=group, async_op=True))

    for w in model.parameters():
        w.register_post_accumulate_grad_hook(ready)
    ((model(x) - y) ** 2).mean().backward()
    for bucket, flat, handle in zip(buckets, flats, handles):
        handle.wait()
        for w, piece in zip(bucket, flat.split([w.numel() for w in bucket])):
            w.grad = piece.view_as(w)
    return [w.grad for w in model.parameters()]
