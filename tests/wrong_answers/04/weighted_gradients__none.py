# `w.grad` is None where no backward ran


def weighted_gradients(model, x, y, group):
    count = torch.tensor(float(y.numel()), dtype=torch.float64, device=y.device)
    dist.all_reduce(count, group=group)
    if len(x):
        (((model(x) - y) ** 2).sum() / count).backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
    return [w.grad for w in model.parameters()]
