"""A GPT written once; its parallel form is a table of layouts.

`GPT(config, tp=group)` holds on each rank the part of every weight that `LAYOUTS` gives it, and is the same model
at any number of ranks. After backward: `finish_gradients`, then `clip_gradients` or `gradient_norm`, then
any optimizer of torch; `tpcourse.zero` takes `finish_some` and `counted_once` instead. `save` and `load` go between
any two numbers of ranks, `to_one_device` and `from_one_device` to and from a plain state dict.
"""

from tpcourse.block.config import GPTConfig
from tpcourse.block.gpt import GPT, Block
from tpcourse.block.gradients import clip_gradients, finish_gradients, gradient_norm
from tpcourse.block.layouts import LAYOUTS, Piece, Shard, layout_of, shard_of
from tpcourse.block.one_device import from_one_device, to_one_device
from tpcourse.block.saving import load, save
from tpcourse.block.sharded import counted_once, finish_some
from tpcourse.block.weights import initial

__all__ = [
    "GPT",
    "LAYOUTS",
    "Block",
    "GPTConfig",
    "Piece",
    "Shard",
    "clip_gradients",
    "counted_once",
    "finish_gradients",
    "finish_some",
    "from_one_device",
    "gradient_norm",
    "initial",
    "layout_of",
    "load",
    "save",
    "shard_of",
    "to_one_device",
]
