"""Data parallel: equal models, other data on each rank, gradients averaged before the optimizer steps.

Three ways to average, each the last one made better: `average_gradients` (a call per parameter),
`average_in_buckets` (few calls, after backward) and `DataParallel` (the same buckets, while backward runs).
All give the gradients of one device that saw the whole batch, if the ranks' losses are means over equally
many examples; `mean_over_ranks` makes the loss for shares that are not equal. The groups' axis is `dp`.
"""

from tpcourse.data.afterwards import average_gradients, average_in_buckets
from tpcourse.data.buckets import Bucket, num_buckets, plan_buckets
from tpcourse.data.parallel import DataParallel
from tpcourse.data.start import broadcast_module, count_over_ranks, mean_over_ranks

__all__ = [
    "Bucket",
    "DataParallel",
    "average_gradients",
    "average_in_buckets",
    "broadcast_module",
    "count_over_ranks",
    "mean_over_ranks",
    "num_buckets",
    "plan_buckets",
]
