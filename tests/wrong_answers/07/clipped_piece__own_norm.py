# Each rank takes the norm of its own piece


def clipped_piece(piece, P, max_norm, dp):
    start = dist.get_rank(dp) * len(piece)
    norm = piece[: max(0, P - start)].norm()
    return norm, piece * (max_norm / norm).clamp(max=1)
