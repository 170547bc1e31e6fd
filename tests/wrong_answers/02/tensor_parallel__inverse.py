# The ratios are upside down
def tensor_parallel(model, flops_per_s, bytes_per_s):
    width = 2 * (model.H + model.kv_heads) * model.K + 3 * model.F
    ratios = {p: bytes_per_s * width / (4 * flops_per_s * (p - 1)) for p in (2, 4, 8)}
    return ratios, max([1, *(p for p in ratios if ratios[p] <= 1)])
