# the last addition of the first phase is missing
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
        mine.copy_(received) if step == p - 2 else mine.add_(received)
    for step in range(p - 1):
        exchange(chunks[(rank - step + 1) % p], right, chunks[(rank - step) % p], left, group=group)
    return total
