# Keys and values are counted with as many heads as queries
def tensor_parallel(model, flops_per_s, bytes_per_s):
    width = 4 * model.H * model.K + 3 * model.F
    ratios = {}
    for p in (2, 4, 8):
        communication_s = 4 * (p - 1) / p * 2 * model.D / bytes_per_s
        product_s = 2 * model.D * width / p / flops_per_s
        ratios[p] = communication_s / product_s
    return ratios, max([1] + [p for p in ratios if ratios[p] <= 1])
