# Each prediction is the time of the nearest size that was measured
def predict(measured, wanted):
    times = []
    for op, n in wanted:
        mine = [(abs(m - n), t) for name, m, t in measured if name == op]
        times.append(min(mine)[1])
    return times
