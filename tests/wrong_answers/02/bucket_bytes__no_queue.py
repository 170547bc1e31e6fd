# Buckets are so small that alpha is paid too often
def bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte):
    def end_s(count):
        # only the last bucket is left when backward ends
        return backward_s + alpha_s + beta_s_per_byte * gradient_bytes / count

    return gradient_bytes / min(range(1, 10_000), key=end_s)
