# for each, all ranks send to one
from torch.nn.functional import linear


def ring_product_scatter(x, weight, tp):
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    parts, works = [], []
    for owner, piece in enumerate(x.chunk(p)):
        parts.append(linear(piece, weight))
        works.append(dist.reduce(parts[-1], dist.get_global_rank(tp, owner), group=tp, async_op=True))
    for work in works:
        work.wait()
    return parts[r]
