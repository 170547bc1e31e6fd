# a chain, as many steps as there are ranks to reach
from tpcourse.wire import receive, send


def tree_broadcast(x, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    result = x.clone()
    if rank != root:
        receive(result, from_=(rank - 1) % p, group=group)
    if (rank + 1) % p != root:
        send(result, to=(rank + 1) % p, group=group)
    return result
