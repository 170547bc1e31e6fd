# it was divided by the number of examples


def weighted_gradients(model, x, y, group):
    count = torch.tensor(float(len(y)), dtype=torch.float64, device=y.device)
    dist.all_reduce(count, group=group)
    (((model(x) - y) ** 2).sum() / count).backward()
    for w in model.parameters():
        dist.all_reduce(w.grad, group=group)
    return [w.grad for w in model.parameters()]
