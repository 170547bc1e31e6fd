# written into the memory that is still being sent
from tpcourse.wire import exchange


def ring_all_gather(piece, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    result = piece.new_empty(p, len(piece))
    result[rank] = piece
    moving = piece.clone()
    for step in range(p - 1):
        exchange(moving, (rank + 1) % p, moving, (rank - 1) % p, group=group)
        result[(rank - step - 1) % p] = moving
    return result.flatten()
