"""The product y = x W^T + b with W split over the ranks: by its rows, by its columns, by heads.

W is [out, in], as in torch. `column_linear` holds some of the outputs on each rank, the columns of W^T;
`row_linear` some of the inputs. One after the other, they need no collective between them (Megatron-LM,
arXiv:1909.08053, section 3). With `sequence_dim` both ends are cut along the tokens (arXiv:2205.05198).
"""

from tpcourse.linear.column import column_linear, gather_columns
from tpcourse.linear.heads import Heads, qkv_linear, sum_shared_heads
from tpcourse.linear.row import row_linear

__all__ = ["Heads", "column_linear", "gather_columns", "qkv_linear", "row_linear", "sum_shared_heads"]
