# At alpha / beta bytes start-up and transfer take equally long
def bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte):
    return min(gradient_bytes, alpha_s / beta_s_per_byte)
