# A sum runs over the world


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        total = partial.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, dy):
        return dy


def row_product(x, weight, bias, tp):
    return Sum.apply(x @ weight.T) + bias
