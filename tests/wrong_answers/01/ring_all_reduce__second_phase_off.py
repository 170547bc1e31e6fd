# the second phase passes on chunks in which no sum ended
from tpcourse.wire import exchange


def ring_all_reduce(x, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % p, (rank - 1) % p
    total = x.clone()
    chunks = list(total.tensor_split(p))
    for step in range(p - 1):
        mine = chunks[(rank - step - 1) % p]
        received = torch.empty_like(mine)
        exchange(chunks[(rank - step) % p], right, received, left, group=group)
        mine += received
    for step in range(p - 1):
        exchange(chunks[(rank - step) % p], right, chunks[(rank - step - 1) % p], left, group=group)
    return total
