# finished kernel of the course

from tpcourse.conjugates import gather_split, split_gather


def enter_and_leave(x, norm, group):
    return gather_split(norm(split_gather(x, group=group, dim=1)), group=group, dim=1)
