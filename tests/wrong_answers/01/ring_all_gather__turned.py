# in mirrored places: the ring was read the other way round
from tpcourse.wire import exchange


def ring_all_gather(piece, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    result = piece.new_empty(p, len(piece))
    result[rank] = piece
    outgoing = piece
    for step in range(p - 1):
        incoming = torch.empty_like(piece)
        exchange(outgoing, (rank + 1) % p, incoming, (rank - 1) % p, group=group)
        result[(rank + step + 1) % p] = incoming
        outgoing = incoming
    return result.flatten()
