# alpha is missing
def predict(measured, wanted):
    times = []
    for op, n in wanted:
        mine = [(m, t) for name, m, t in measured if name == op]
        times.append(fit_line([m for m, _ in mine], [t for _, t in mine])[1] * n)
    return times
