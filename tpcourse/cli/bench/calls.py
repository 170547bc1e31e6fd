"""How a benchmark calls its module in a rank: by name, so that the command itself need not import torch."""

from __future__ import annotations

from typing import Any


def here(module: str, name: str, *args: Any) -> Any:
    """Runs in the rank: call `tpcourse.cli.bench.MODULE.NAME`."""
    import importlib

    return getattr(importlib.import_module(f"tpcourse.cli.bench.{module}"), name)(*args)
