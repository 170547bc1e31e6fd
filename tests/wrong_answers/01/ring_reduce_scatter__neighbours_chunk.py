# the ring began one chunk off
from tpcourse.wire import exchange


def ring_reduce_scatter(x, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    partial = x.clone().view(p, -1)
    for step in range(p - 1):
        mine, received = partial[(rank - step - 1) % p], torch.empty_like(partial[0])
        exchange(partial[(rank - step) % p], (rank + 1) % p, received, (rank - 1) % p, group=group)
        mine += received
    return partial[(rank + 1) % p].clone()
