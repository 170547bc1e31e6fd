# finished kernel of the course

from tpcourse.linear import column_linear


def regathered_column(x, weight, bias, group):
    return column_linear(x, weight, bias, tp=group, sequence_dim=1, regather=True)
