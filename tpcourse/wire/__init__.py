"""What travels between ranks: torch's collectives as functions, and the same made of send and receive.

The calls to use are `all_reduce`, `all_gather`, ...: each returns a new tensor. The ones to read carry
their algorithm's name, `ring_all_reduce`, `tree_broadcast`, ...: each is written from one primitive,
`exchange`. Everywhere a root or a peer is a rank of the given group, 0 to p - 1, and pieces are cut along
dim 0 by `tpcourse.dims.split_sizes` unless `sizes` says otherwise. Nothing here has a backward:
`tpcourse.conjugates` has.
"""

from tpcourse.wire.exchange import exchange, receive, send
from tpcourse.wire.halving import doubling_all_gather, halving_doubling_all_reduce, halving_reduce_scatter
from tpcourse.wire.naive import naive_all_reduce, naive_broadcast, naive_gather, naive_reduce, naive_scatter
from tpcourse.wire.pairwise import pairwise_all_to_all
from tpcourse.wire.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from tpcourse.wire.torch_calls import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from tpcourse.wire.tree import tree_all_reduce, tree_broadcast, tree_reduce

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "doubling_all_gather",
    "exchange",
    "gather",
    "halving_doubling_all_reduce",
    "halving_reduce_scatter",
    "naive_all_reduce",
    "naive_broadcast",
    "naive_gather",
    "naive_reduce",
    "naive_scatter",
    "pairwise_all_to_all",
    "receive",
    "reduce",
    "reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "scatter",
    "send",
    "tree_all_reduce",
    "tree_broadcast",
    "tree_reduce",
]
