# A rank that begins behind the end counts padding


def clipped_piece(piece, P, max_norm, dp):
    square = piece[: P - dist.get_rank(dp) * len(piece)].square().sum()
    dist.all_reduce(square, group=dp)
    norm = square.sqrt()
    return norm, piece * (max_norm / norm).clamp(max=1)
