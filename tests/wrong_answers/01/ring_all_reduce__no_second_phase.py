# the second phase, which passes the sums round, is missing
from tpcourse.wire import exchange


def ring_all_reduce(x, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    total = x.clone()
    chunks = total.tensor_split(p)
    for step in range(p - 1):
        mine = chunks[(rank - step - 1) % p]
        received = torch.empty_like(mine)
        exchange(chunks[(rank - step) % p], (rank + 1) % p, received, (rank - 1) % p, group=group)
        mine += received
    return total
