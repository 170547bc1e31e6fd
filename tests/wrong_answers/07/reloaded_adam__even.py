# Pieces have different lengths


def reloaded_adam(read, saved, P, options, dp):
    p, r = dist.get_world_size(dp), dist.get_rank(dp)
    files = [read(j) for j in range(saved)]
    state = {"step": files[0]["step"]}
    for name in ("weight", "exp_avg", "exp_avg_sq"):
        whole = torch.cat([file[name] for file in files])[:P]
        state[name] = whole.tensor_split(p)[r].clone()
    piece = state.pop("weight")
    adam = torch.optim.AdamW([piece], **options)
    adam.state[piece] = state
    return adam
