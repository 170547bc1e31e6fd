# buckets leave room that the next parameter could fill


def bucketed_gradients(model, x, y, bucket_bytes, group):
    ((model(x) - y) ** 2).mean().backward()
    buckets, room = [], 0
    for w in model.parameters():
        if w.grad.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(w)
        room -= w.grad.nbytes
    for bucket in buckets:
        flat = torch.cat([w.grad.flatten() for w in bucket]) / dist.get_world_size(group)
        dist.all_reduce(flat, group=group)
        for w, piece in zip(bucket, flat.split([w.numel() for w in bucket])):
            w.grad = piece.view_as(w)
    return [w.grad for w in model.parameters()]
