# they were not averaged, or the average was not copied back


def mean_gradients(model, x, y, group):
    first = dist.get_global_rank(group, 0)
    for w in model.parameters():
        dist.broadcast(w.data, src=first, group=group)
    loss = ((model(x) - y) ** 2).mean()
    mean = loss.detach().clone()
    dist.all_reduce(mean, group=group)
    loss.backward()
    return [w.grad for w in model.parameters()]
