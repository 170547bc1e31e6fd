# Each rank multiplies the whole product
def tensor_parallel(model, flops_per_s, bytes_per_s):
    width = (2 * model.H + 2 * model.kv_heads) * model.K + 3 * model.F
    ratios = {}
    for p in (2, 4, 8):
        communication_s = 4 * (p - 1) / p * 2 * model.D / bytes_per_s
        product_s = 2 * model.D * width / flops_per_s
        ratios[p] = communication_s / product_s
    return ratios, max([1] + [p for p in ratios if ratios[p] <= 1])
