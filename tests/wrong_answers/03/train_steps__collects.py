# Collecting garbage frees nothing here
import gc


def train_steps(model, optimizer, batches):
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean()
        size = 0.01 * y.square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        size.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
        gc.collect()
        torch.cuda.empty_cache()
    return torch.stack(losses)
