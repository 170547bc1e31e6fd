# The line goes through the smallest and the largest size
def fit_line(sizes, times):
    points = sorted(zip(sizes, times))
    (n1, t1), (n2, t2) = points[0], points[-1]
    beta = (t2 - t1) / (n2 - n1)
    return t1 - beta * n1, beta
