# passed x on before the root's x had reached it
from tpcourse.wire import receive, send


def tree_broadcast(x, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    v, distance = (rank - root) % p, (1 << (p - 1).bit_length()) // 2
    result = x.clone()
    while distance >= 1:
        if v % (2 * distance) == distance:
            receive(result, from_=(rank - distance) % p, group=group)
        elif v % (2 * distance) == 0 and v + distance < p:
            send(x, to=(rank + distance) % p, group=group)
        distance //= 2
    return result
