# The products are averaged

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, tp):
        total = partial.clone()
        dist.all_reduce(total, group=tp)
        return total / dist.get_world_size(tp)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def row_product(x, weight, bias, tp):
    return Sum.apply(x @ weight.T, tp) + bias
