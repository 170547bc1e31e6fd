# The first backward freed what the second one reads


def train_steps(model, optimizer, batches):
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean()
        size = 0.01 * y.square().mean()
        optimizer.zero_grad()
        loss.backward()
        size.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
