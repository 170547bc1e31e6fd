# shorter than the one that was given


def clipped_piece(piece, P, max_norm, dp):
    piece = piece[: max(0, P - dist.get_rank(dp) * len(piece))]
    square = piece.square().sum()
    dist.all_reduce(square, group=dp)
    norm = square.sqrt()
    return norm, piece * (max_norm / norm).clamp(max=1)
