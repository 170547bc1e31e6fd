# The gather begins behind the product
from torch.nn.functional import linear

from tpcourse.wire.torch_calls import all_gather_single


def gathered_meanwhile(piece, x, weight, tp):
    whole = piece.new_empty(dist.get_world_size(tp) * len(piece), piece.shape[1])
    y = linear(x, weight)
    work = all_gather_single(whole, piece, group=tp, async_op=True)
    work.wait()
    return whole, y
