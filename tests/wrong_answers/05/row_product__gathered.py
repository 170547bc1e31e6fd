# Pieces are gathered to repeat the whole product


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, piece, tp):
        ctx.place, ctx.p = dist.get_rank(tp), dist.get_world_size(tp)
        pieces = [torch.empty_like(piece) for _ in range(ctx.p)]
        dist.all_gather(pieces, piece.contiguous(), group=tp)
        return torch.cat(pieces, dim=1)

    @staticmethod
    def backward(ctx, dy):
        width = dy.shape[1] // ctx.p
        return dy[:, ctx.place * width :][:, :width], None


def row_product(x, weight, bias, tp):
    return Gather.apply(x, tp) @ Gather.apply(weight, tp).T + bias
