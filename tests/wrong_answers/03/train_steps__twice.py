# The model runs twice for each batch


def train_steps(model, optimizer, batches):
    losses = []
    for x, target in batches:
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        (0.01 * model(x).square().mean()).backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
