# A rank without gradients leaves out its call


def clipped_piece(piece, P, max_norm, dp):
    start = dist.get_rank(dp) * len(piece)
    if start >= P:
        return piece.new_zeros(()), piece  # nothing but padding here
    square = piece[: P - start].square().sum()
    dist.all_reduce(square, group=dp)
    norm = square.sqrt()
    return norm, piece * (max_norm / norm).clamp(max=1)
