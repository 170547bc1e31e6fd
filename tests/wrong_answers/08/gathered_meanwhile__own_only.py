# this rank's own piece
from torch.nn.functional import linear

from tpcourse.wire.torch_calls import all_gather_single


def gathered_meanwhile(piece, x, weight, tp):
    whole = piece.repeat(dist.get_world_size(tp), 1)
    work = all_gather_single(torch.empty_like(whole), piece, group=tp, async_op=True)
    y = linear(x, weight)
    work.wait()
    return whole, y
