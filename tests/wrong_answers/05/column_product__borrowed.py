# The answer calls the course's own kernel or pair
from tpcourse.conjugates import copy_sum


def column_product(x, weight, bias, tp):
    return copy_sum(x, group=tp) @ weight.T + bias
