# gradients are p times too large
from torch.distributed.nn.functional import all_reduce


def row_product(x, weight, bias, tp):
    return all_reduce(x @ weight.T, group=tp) + bias
