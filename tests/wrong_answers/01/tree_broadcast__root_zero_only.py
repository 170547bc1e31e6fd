# places in the tree are counted from rank 0
from tpcourse.wire import receive, send


def tree_broadcast(x, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    v = (rank - root) % p
    result, distance = x.clone(), 1
    while distance < p:
        if v < distance and v + distance < p:
            send(result, to=v + distance, group=group)
        elif distance <= v < 2 * distance:
            receive(result, from_=v - distance, group=group)
        distance *= 2
    return result
