# Errors count in seconds, so the largest arrays decide alone
import numpy as np


def fit_line(sizes, times):
    beta, alpha = np.polyfit(sizes, times, 1)
    return alpha, beta
