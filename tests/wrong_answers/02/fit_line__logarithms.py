# A straight line was fitted to logarithms
import numpy as np


def fit_line(sizes, times):
    slope, start = np.polyfit(np.log(sizes), np.log(times), 1)
    return np.exp(start), slope
