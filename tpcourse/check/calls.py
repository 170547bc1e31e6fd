"""How the notebook calls `rank_side` in a rank, and what it says if that fails.

By name, so that the notebook's kernel need not import torch.
"""

from __future__ import annotations

from typing import Any


def in_rank(name: str, *args: Any) -> Any:
    """Runs in the rank: call `tpcourse.check.rank_side.NAME`."""
    import importlib

    return getattr(importlib.import_module("tpcourse.check.rank_side"), name)(*args)


def sentence_of(error: Exception) -> str:
    """What a run in the ranks failed with, in one sentence."""
    report = getattr(error, "report", None)
    text = getattr(report, "sentence", "") or str(error).strip() or type(error).__name__
    return text.splitlines()[0]
