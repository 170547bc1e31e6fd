# come by a collective, all at once
from torch.nn.functional import linear

from tpcourse.wire.torch_calls import all_gather_single


def ring_gather_product(x, weight, bias, tp):
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    whole = x.new_empty(p * len(x), x.shape[1])
    work = all_gather_single(whole, x, group=tp, async_op=True)
    y = x.new_empty(p, len(x), len(weight))
    y[r] = linear(x, weight, bias)
    work.wait()
    for owner, piece in enumerate(whole.chunk(p)):
        if owner != r:
            y[owner] = linear(piece, weight, bias)
    return y.flatten(0, 1)
