# Rank r takes file r


def reloaded_adam(read, saved, P, options, dp):
    file = read(dist.get_rank(dp) % saved)
    piece = file.pop("weight")
    adam = torch.optim.AdamW([piece], **options)
    adam.state[piece] = file
    return adam
