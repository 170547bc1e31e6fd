# more travels than one number

from tpcourse.wire import all_gather


def clipped_piece(piece, P, max_norm, dp):
    norm = all_gather(piece, group=dp)[:P].norm()
    return norm, piece * (max_norm / norm).clamp(max=1)
