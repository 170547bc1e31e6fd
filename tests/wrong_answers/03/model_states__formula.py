# the formula, not a count of what is there


def model_states(model, optimizer):
    count = sum(p.numel() for p in model.parameters())
    return {"parameter": 2 * count, "gradient": 2 * count, "master": 4 * count, "moment": 8 * count}
