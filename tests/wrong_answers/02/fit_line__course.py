# The answer calls the course's own version
from tpcourse.costs.fitting import least_squares


def fit_line(sizes, times):
    return least_squares(sizes, times)
