# Shares are counted more than once
from tpcourse.wire import exchange


def ring_all_reduce(x, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    total = x.clone()
    for _ in range(p - 1):
        received = torch.empty_like(x)
        exchange(total, (rank + 1) % p, received, (rank - 1) % p, group=group)
        total += received
    return total
