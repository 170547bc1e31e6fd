"""Sequence parallel: norm, dropout and residual on a rank's own tokens, where tensor parallelism repeats them.

Between two split products every token is worked on alone, so each rank takes T/p of the tokens (arXiv:2205.05198,
section 4.2.2). An all-reduce is a reduce-scatter and an all-gather; the tokens stay apart between the two. `enter`
and `leave` are the doors at the ends; inside a block `tpcourse.linear` gathers and scatters with
`sequence_dim`. What is whole on every rank but saw only its tokens, such as a norm's scale, has a partial gradient:
`sum_gradients` adds them up. `Seeds` and `dropout` draw masks that agree or differ as the tensors do.
"""

from tpcourse.sequence.gradients import sum_gradients
from tpcourse.sequence.masks import Seeds, dropout
from tpcourse.sequence.pieces import enter, leave, token_sizes

__all__ = ["Seeds", "dropout", "enter", "leave", "sum_gradients", "token_sizes"]
