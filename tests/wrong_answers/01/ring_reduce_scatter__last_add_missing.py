# The last addition is missing
from tpcourse.wire import exchange


def ring_reduce_scatter(x, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.view(p, -1)
    outgoing = chunks[(rank - 1) % p]
    for step in range(p - 1):
        received = torch.empty_like(outgoing)
        exchange(outgoing, (rank + 1) % p, received, (rank - 1) % p, group=group)
        outgoing = received + chunks[(rank - step - 2) % p]
    return received
