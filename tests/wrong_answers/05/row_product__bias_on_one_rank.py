# Only the first rank adds the bias


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, tp):
        total = partial.clone()
        dist.all_reduce(total, group=tp)
        return total

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def row_product(x, weight, bias, tp):
    partial = x @ weight.T
    if dist.get_rank(tp) == 0:
        partial = partial + bias
    return Sum.apply(partial, tp)
