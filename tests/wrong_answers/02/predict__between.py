# Between measured sizes this is right; beyond the largest it repeats the last time
import numpy as np


def predict(measured, wanted):
    times = []
    for op, n in wanted:
        mine = sorted((m, t) for name, m, t in measured if name == op)
        times.append(np.interp(n, [m for m, _ in mine], [t for _, t in mine]))
    return times
