# One bucket holds everything
def bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte):
    # fewest calls: alpha is paid once
    return gradient_bytes
