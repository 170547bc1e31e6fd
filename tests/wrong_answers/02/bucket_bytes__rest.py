# a rest is left for one more
def bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte):
    def end_s(count):
        gap, call = backward_s / count, alpha_s + beta_s_per_byte * gradient_bytes / count
        return gap + (count - 1) * max(gap, call) + call

    return gradient_bytes // min(range(1, 5000), key=end_s)
