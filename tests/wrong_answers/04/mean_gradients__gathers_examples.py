# another collective brought them


def mean_gradients(model, x, y, group):
    p, first = dist.get_world_size(group), dist.get_global_rank(group, 0)
    for w in model.parameters():
        dist.broadcast(w.data, src=first, group=group)
    xs, ys = [torch.empty_like(x) for _ in range(p)], [torch.empty_like(y) for _ in range(p)]
    dist.all_gather(xs, x, group=group)
    dist.all_gather(ys, y, group=group)
    ((model(torch.cat(xs)) - torch.cat(ys)) ** 2).mean().backward()
    return [w.grad for w in model.parameters()]
