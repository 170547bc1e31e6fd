# Each file is read several times


def reloaded_adam(read, saved, P, options, dp):
    n, old = -(-P // dist.get_world_size(dp)), -(-P // saved)
    start = dist.get_rank(dp) * n
    end = min(start + n, P)
    arrays = {name: torch.zeros(n, dtype=torch.float64, device=device) for name in ("weight", "exp_avg", "exp_avg_sq")}
    for j in range(start // old, -(-end // old)):
        file, first, last = read(j), max(start, j * old), min(end, (j + 1) * old)
        for name, array in arrays.items():
            file = read(j)
            array[first - start : last - start] = file[name][first - j * old : last - j * old]
    piece = arrays.pop("weight")
    adam = torch.optim.AdamW([piece], **options)
    adam.state[piece] = {"step": file["step"], **arrays}
    return adam
