# The losses were not returned as one tensor

def train_steps(model, optimizer, batches):
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean()
        optimizer.zero_grad()
        (loss + 0.01 * y.square().mean()).backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses
