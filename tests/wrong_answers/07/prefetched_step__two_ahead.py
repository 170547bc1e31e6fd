# More than one layer is fetched ahead
from torch.nn.functional import pad

from tpcourse.wire import reduce_scatter
from tpcourse.wire.torch_calls import all_gather_single


def prefetched_step(x, target, layers, pieces, dp):
    p, L = dist.get_world_size(dp), len(layers)
    order = [*range(L), *reversed(range(L))]

    def begin(use):
        piece = pieces[order[use]]
        whole = piece.new_empty(p * len(piece))
        return whole, all_gather_single(whole, piece, group=dp, async_op=True)

    inputs, gradients, first, following = [], [], begin(0), begin(1)
    for use, number in enumerate(order):
        whole, work = first
        first = following
        work.wait()
        layer, flat = layers[number], whole[: layers[number].size]  # the use before is let go
        following = begin(use + 2) if use + 2 < 2 * L else None
        if use < L:
            inputs.append(x)
            x = layer.forward(x, flat)
            continue
        if use == L:
            dy = x - target
        dy, dflat = layer.backward(inputs.pop(), flat, dy)
        gradients.append(reduce_scatter(pad(dflat / p, (0, -layer.size % p)), group=dp))
    return x, gradients[::-1]
