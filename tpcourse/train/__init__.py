"""A training step, on one device or on many that must give the same weights: text, a small GPT, the step."""

from tpcourse.train.gpt import GPT
from tpcourse.train.step import accumulate, loss_sum, train_step
from tpcourse.train.text import NUM_BYTES, batch, source_tokens

__all__ = ["GPT", "NUM_BYTES", "accumulate", "batch", "loss_sum", "source_tokens", "train_step"]
