# Each rank has tokens of other ranks
from torch.nn.functional import linear

from tpcourse.wire.torch_calls import reduce_scatter_single


def pieced_product_scatter(x, weight, num_pieces, tp):
    p, mine, works = dist.get_world_size(tp), [], []
    for piece in x.chunk(num_pieces):
        part = linear(piece, weight)
        mine.append(part.new_empty(len(part) // p, len(weight)))
        works.append(reduce_scatter_single(mine[-1], part, group=tp, async_op=True))
    for work in works:
        work.wait()
    return torch.cat(mine)
