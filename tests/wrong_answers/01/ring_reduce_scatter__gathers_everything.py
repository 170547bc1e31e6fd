# whole arrays travel
from tpcourse.wire import exchange


def ring_reduce_scatter(x, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    total, outgoing = x.clone(), x
    for _ in range(p - 1):
        received = torch.empty_like(x)
        exchange(outgoing, (rank + 1) % p, received, (rank - 1) % p, group=group)
        total += received
        outgoing = received
    return total.view(p, -1)[rank].clone()
