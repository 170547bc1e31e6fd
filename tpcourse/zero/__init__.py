"""ZeRO: data parallel ranks that do not all hold the same states.

Three stages, each a small edit of the one before: `Zero1` shards the Adam states, `Zero2` the gradients too, `Zero3`
the weights as well. All give the weights of one device that saw the whole batch, if the ranks' losses are means over
equally many examples. The groups' axis is `dp`.
"""

from tpcourse.zero.flat import Flat
from tpcourse.zero.norm import Share, global_norm
from tpcourse.zero.saving import load, read, save
from tpcourse.zero.stage1 import Zero1
from tpcourse.zero.stage2 import Zero2
from tpcourse.zero.stage3 import Zero3

__all__ = ["Flat", "Share", "Zero1", "Zero2", "Zero3", "global_norm", "load", "read", "save"]
