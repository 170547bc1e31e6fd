# in the other order than the task names them in


def clipped_piece(piece, P, max_norm, dp):
    start = dist.get_rank(dp) * len(piece)
    square = piece[: max(0, P - start)].square().sum()
    dist.all_reduce(square, group=dp)
    norm = square.sqrt()
    return piece * (max_norm / norm).clamp(max=1), norm
