# one buffer was kept for all steps
from tpcourse.wire import exchange


def ring_all_gather(piece, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    pieces = [piece] * p
    incoming, outgoing = torch.empty_like(piece), piece
    for step in range(p - 1):
        exchange(outgoing, (rank + 1) % p, incoming, (rank - 1) % p, group=group)
        pieces[(rank - step - 1) % p] = incoming
        outgoing = incoming.clone()
    return torch.cat(pieces)
