# The weights are cut anew and the moments are not


def reloaded_adam(read, saved, P, options, dp):
    n, old = -(-P // dist.get_world_size(dp)), -(-P // saved)
    start = dist.get_rank(dp) * n
    end = min(start + n, P)
    piece = torch.zeros(n, dtype=torch.float64, device=device)
    for j in range(start // old, -(-end // old)):
        file, first, last = read(j), max(start, j * old), min(end, (j + 1) * old)
        piece[first - start : last - start] = file["weight"][first - j * old : last - j * old]
    state, own = {"step": file["step"]}, read(dist.get_rank(dp) % saved)
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = torch.zeros_like(piece)
        state[name][:old] = own[name][:n]
    adam = torch.optim.AdamW([piece], **options)
    adam.state[piece] = state
    return adam
