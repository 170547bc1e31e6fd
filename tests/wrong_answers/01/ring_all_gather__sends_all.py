# each step passes on more than the piece that has just arrived
from tpcourse.wire import exchange


def ring_all_gather(piece, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    result = piece.new_zeros(p, len(piece))
    result[rank] = piece
    for _ in range(p - 1):
        incoming = torch.empty_like(result)
        exchange(result.clone(), (rank + 1) % p, incoming, (rank - 1) % p, group=group)
        result = torch.where(result == 0, incoming, result)
    return result.flatten()
