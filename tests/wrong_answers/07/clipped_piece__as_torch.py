# The factor is torch's


def clipped_piece(piece, P, max_norm, dp):
    start = dist.get_rank(dp) * len(piece)
    square = piece[: max(0, P - start)].square().sum()
    dist.all_reduce(square, group=dp)
    norm = square.sqrt()
    return norm, piece * (max_norm / (norm + 1e-6)).clamp(max=1)
