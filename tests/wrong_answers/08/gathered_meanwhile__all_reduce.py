# another operation brought them
from torch.nn.functional import linear


def gathered_meanwhile(piece, x, weight, tp):
    whole = piece.new_empty(dist.get_world_size(tp) * len(piece), piece.shape[1])
    whole.zero_()
    r = dist.get_rank(tp)
    whole[r * len(piece) : (r + 1) * len(piece)] = piece
    work = dist.all_reduce(whole, group=tp, async_op=True)
    y = linear(x, weight)
    work.wait()
    return whole, y
