"""A training step, on one device or on many that must give the same weights: text, a small GPT, the step, the loop.

The notebook's side is `run`: torch is loaded by what needs it, not by `import tpcourse.train`.
"""

from typing import TYPE_CHECKING

from tpcourse.lazy import lazy

if TYPE_CHECKING:
    from tpcourse.train.gpt import GPT as GPT
    from tpcourse.train.loop import Trainer as Trainer
    from tpcourse.train.loop import warmup_cosine as warmup_cosine
    from tpcourse.train.progress import run as run
    from tpcourse.train.sampling import sample as sample
    from tpcourse.train.step import accumulate as accumulate
    from tpcourse.train.step import loss_sum as loss_sum
    from tpcourse.train.step import train_step as train_step
    from tpcourse.train.text import NUM_BYTES as NUM_BYTES
    from tpcourse.train.text import batch as batch
    from tpcourse.train.text import source_tokens as source_tokens

_HOME = {
    "GPT": "gpt", "NUM_BYTES": "text", "Trainer": "loop", "accumulate": "step", "batch": "text", "loss_sum": "step",
    "run": "progress", "sample": "sampling", "source_tokens": "text",
    "train_step": "step", "warmup_cosine": "loop",
}  # fmt: skip
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
