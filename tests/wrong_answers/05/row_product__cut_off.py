# A gradient never arrives


def row_product(x, weight, bias, tp):
    y = x @ weight.T
    total = y.detach().clone()
    dist.all_reduce(total, group=tp)
    return total + bias
