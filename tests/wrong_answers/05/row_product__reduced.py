# `dist.reduce` leaves its result on one rank

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, tp):
        total = partial.clone()
        dist.reduce(total, group_dst=0, group=tp)
        return total

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def row_product(x, weight, bias, tp):
    return Sum.apply(x @ weight.T, tp) + bias
