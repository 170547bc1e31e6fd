# Norms are added up


def clipped_piece(piece, P, max_norm, dp):
    start = dist.get_rank(dp) * len(piece)
    norm = piece[: max(0, P - start)].norm()
    dist.all_reduce(norm, group=dp)
    return norm, piece * (max_norm / norm).clamp(max=1)
