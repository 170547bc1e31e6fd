# there is one step too many
from tpcourse.wire import exchange


def ring_all_gather(piece, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    result = piece.new_empty(p, len(piece))
    result[rank] = piece
    for step in range(p):
        exchange(result[(rank - step) % p], (rank + 1) % p, result[(rank - step - 1) % p], (rank - 1) % p, group=group)
    return result.flatten()
