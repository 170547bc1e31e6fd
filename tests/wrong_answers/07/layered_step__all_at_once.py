# All layers are gathered before the first computes

from torch.nn.functional import pad

from tpcourse.wire import all_gather, reduce_scatter


def layered_step(x, target, layers, pieces, dp):
    p, inputs, gradients = dist.get_world_size(dp), [], []
    wholes = [all_gather(piece, group=dp)[: layer.size] for layer, piece in zip(layers, pieces)]
    for layer, whole in zip(layers, wholes):
        inputs.append(x)
        x = layer.forward(x, whole)
    dy = x - target
    for layer, whole in zip(reversed(layers), reversed(wholes)):
        dy, dflat = layer.backward(inputs.pop(), whole, dy)
        gradients.append(reduce_scatter(pad(dflat / p, (0, -layer.size % p)), group=dp))
    return x, gradients[::-1]
