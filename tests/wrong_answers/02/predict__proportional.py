# The time is taken to be proportional to the size
def predict(measured, wanted):
    bandwidth = {}
    for op, n, t in sorted(measured, key=lambda row: row[1]):
        bandwidth[op] = n / t
    return [n / bandwidth[op] for op, n in wanted]
