# The square root is right where sums queue
def bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte):
    count = max(1, round((backward_s / alpha_s) ** 0.5))
    return gradient_bytes / count
