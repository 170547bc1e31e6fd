# serial in disguise
from torch.nn.functional import linear


def pass_on(outgoing, incoming, tp):
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    right, left = (dist.get_global_rank(tp, (r + way) % p) for way in (1, -1))
    sending = dist.P2POp(dist.isend, outgoing, right, tp)
    return dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, incoming, left, tp)])


def ring_gather_product(x, weight, bias, tp):
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    pieces = [torch.empty_like(x) for _ in range(p)]
    pieces[r] = x
    for step in range(p - 1):
        for work in pass_on(pieces[(r - step) % p], pieces[(r - step - 1) % p], tp):
            work.wait()
    return torch.cat([linear(piece, weight, bias) for piece in pieces])
