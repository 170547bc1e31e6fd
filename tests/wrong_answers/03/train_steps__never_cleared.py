# Gradients of earlier steps are still there

def train_steps(model, optimizer, batches):
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean()
        (loss + 0.01 * y.square().mean()).backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
