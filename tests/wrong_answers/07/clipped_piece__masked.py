# multiplied by zero and not left out


def clipped_piece(piece, P, max_norm, dp):
    start = dist.get_rank(dp) * len(piece)
    mask = (torch.arange(start, start + len(piece), device=piece.device) < P).to(piece.dtype)
    square = (piece * mask).square().sum()
    dist.all_reduce(square, group=dp)
    norm = square.sqrt()
    return norm, piece * (max_norm / norm).clamp(max=1)
