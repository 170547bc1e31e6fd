# gives every rank the whole sum
from torch.nn.functional import linear


def pieced_product_scatter(x, weight, num_pieces, tp):
    p, mine, works = dist.get_world_size(tp), [], []
    for piece in x.view(p, -1, x.shape[1]).chunk(num_pieces, 1):
        part = linear(piece, weight)
        mine.append(part)
        works.append(dist.all_reduce(part, group=tp, async_op=True))
    for work in works:
        work.wait()
    return torch.cat([m[dist.get_rank(tp)] for m in mine])
