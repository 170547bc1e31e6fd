"""How the notebook calls `tpcourse.engine` in a rank: by name, so that the notebook itself need not import torch."""

from __future__ import annotations

from typing import Any


def call(name: str, *args: Any) -> Any:
    """Runs in the rank: call `tpcourse.engine.NAME`."""
    import importlib

    return getattr(importlib.import_module("tpcourse.engine"), name)(*args)
