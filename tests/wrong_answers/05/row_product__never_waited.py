# A call was begun with `async_op=True` and never waited for

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, tp):
        total = partial.clone()
        dist.all_reduce(total, group=tp, async_op=True)
        return total

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def row_product(x, weight, bias, tp):
    return Sum.apply(x @ weight.T, tp) + bias
