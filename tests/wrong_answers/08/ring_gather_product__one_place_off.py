# The rows of y are one place off
from torch.nn.functional import linear


def pass_on(outgoing, incoming, tp):
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    right, left = (dist.get_global_rank(tp, (r + way) % p) for way in (1, -1))
    sending = dist.P2POp(dist.isend, outgoing, right, tp)
    return dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, incoming, left, tp)])


def ring_gather_product(x, weight, bias, tp):
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    y = x.new_empty(p, len(x), len(weight))
    now = x
    for step in range(p):
        coming, works = torch.empty_like(x), []
        if step < p - 1:
            works = pass_on(now, coming, tp)
        y[(r - step - 1) % p] = linear(now, weight, bias)
        for work in works:
            work.wait()
        now = coming
    return y.flatten(0, 1)
