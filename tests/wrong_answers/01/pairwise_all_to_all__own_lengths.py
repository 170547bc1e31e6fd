# was given the length of what leaves
from tpcourse.wire import exchange


def pairwise_all_to_all(pieces, sizes, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    received = [torch.empty_like(piece) for piece in pieces]
    received[rank].copy_(pieces[rank])
    for step in range(1, p):
        right, left = (rank + step) % p, (rank - step) % p
        exchange(pieces[right], right, received[left], left, group=group)
    return received
