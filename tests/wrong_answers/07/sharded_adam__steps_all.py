# Each rank steps all weights and holds all moments


def sharded_adam(weights, gradient, steps, options, dp):
    P, p, r = len(weights), dist.get_world_size(dp), dist.get_rank(dp)
    n = -(-P // p)
    whole = weights.clone()
    adam = torch.optim.AdamW([whole], **options)
    for _ in range(steps):
        g = gradient(whole)
        dist.all_reduce(g, group=dp)
        whole.grad = g / p
        adam.step()
        padded = torch.cat([whole, whole.new_zeros(p * n - P)])
        gathered = [torch.empty_like(padded[:n]) for _ in range(p)]
        dist.all_gather(gathered, padded[r * n : (r + 1) * n].clone(), group=dp)
        whole.copy_(torch.cat(gathered)[:P])
    return whole
