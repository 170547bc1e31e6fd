# One line was fitted to all operations together
import numpy as np


def predict(measured, wanted):
    sizes = np.array([n for _, n, _ in measured])
    times = np.array([t for _, _, t in measured])
    beta, alpha = np.polyfit(sizes, times, 1, w=1 / times)
    return [alpha + beta * n for _, n in wanted]
