# The loss was cut from its graph before its backward


def train_steps(model, optimizer, batches):
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean().detach()
        size = 0.01 * y.square().mean()
        optimizer.zero_grad()
        loss.backward()
        size.backward()
        optimizer.step()
        losses.append(loss)
    return torch.stack(losses)
