# A step is missing
from tpcourse.wire import exchange


def ring_all_gather(piece, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    result = piece.new_zeros(p, len(piece))
    result[rank] = piece
    for step in range(p - 2):
        outgoing, incoming = result[(rank - step) % p], result[(rank - step - 1) % p]
        exchange(outgoing, (rank + 1) % p, incoming, (rank - 1) % p, group=group)
    return result.flatten()
