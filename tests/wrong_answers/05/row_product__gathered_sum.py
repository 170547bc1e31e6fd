# The partial y are gathered, and every rank adds up all of them

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, tp):
        parts = [torch.empty_like(partial) for _ in range(dist.get_world_size(tp))]
        dist.all_gather(parts, partial.contiguous(), group=tp)
        return sum(parts)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def row_product(x, weight, bias, tp):
    return Sum.apply(x @ weight.T, tp) + bias
