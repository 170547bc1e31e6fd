# 25 MB is a default for some cluster
def bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte):
    return min(gradient_bytes, 25 * 1024 * 1024)
