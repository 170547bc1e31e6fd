# The padding enters the norm


def clipped_piece(piece, P, max_norm, dp):
    square = piece.square().sum()
    dist.all_reduce(square, group=dp)
    norm = square.sqrt()
    return norm, piece * (max_norm / norm).clamp(max=1)
