# ranks communicate in every micro-step


def accumulated_gradients(model, xs, ys, group):
    p, k = dist.get_world_size(group), len(xs)
    total = [torch.zeros_like(w) for w in model.parameters()]
    for x, y in zip(xs, ys):
        model.zero_grad()
        (((model(x) - y) ** 2).mean() / k).backward()
        for w, so_far in zip(model.parameters(), total):
            dist.all_reduce(w.grad, group=group)
            so_far += w.grad / p
    return total
