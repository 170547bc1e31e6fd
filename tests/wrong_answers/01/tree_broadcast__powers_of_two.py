# only if p is a power of two
from tpcourse.wire import receive, send


def tree_broadcast(x, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    v = (rank - root) % p
    result, distance = x.clone(), 1
    while distance < p:
        if v < distance:
            send(result, to=v + distance if root == 0 else (rank + distance) % p, group=group)
        elif distance <= v < 2 * distance:
            receive(result, from_=(rank - distance) % p, group=group)
        distance *= 2
    return result
