# ranks also send what the receiver has no use for
from tpcourse.wire import exchange


def pairwise_all_to_all(pieces, sizes, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    everything, most = torch.cat(pieces), 16 * 16
    message = everything.new_zeros(2, most)
    message[0, : len(everything)] = everything
    message[1, :p] = torch.tensor([float(len(piece)) for piece in pieces])
    received = [None] * p
    received[rank] = pieces[rank].clone()
    for step in range(1, p):
        right, left = (rank + step) % p, (rank - step) % p
        incoming = torch.empty_like(message)
        exchange(message, right, incoming, left, group=group)
        lengths = incoming[1, :p].int().tolist()
        received[left] = incoming[0, sum(lengths[:rank]) : sum(lengths[: rank + 1])].clone()
    return received
