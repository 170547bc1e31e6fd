# A barrier is not in the budget
from torch.nn.functional import linear

from tpcourse.wire.torch_calls import all_gather_single


def gathered_meanwhile(piece, x, weight, tp):
    whole = piece.new_empty(dist.get_world_size(tp) * len(piece), piece.shape[1])
    work = all_gather_single(whole, piece, group=tp, async_op=True)
    y = linear(x, weight)
    work.wait()
    dist.barrier(group=tp)
    return whole, y
