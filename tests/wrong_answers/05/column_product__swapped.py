# x is added up in forward


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, tp):
        total = partial.clone()
        dist.all_reduce(total, group=tp)
        return total

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def column_product(x, weight, bias, tp):
    return Sum.apply(x, tp) @ weight.T + bias
