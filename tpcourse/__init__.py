"""tpcourse: learn how large models are trained on many GPUs, on real ranks, in a notebook."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["start_ranks", "show_source", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the two everyday names on first use, so that `import tpcourse` costs nothing."""
    if name == "start_ranks":
        from tpcourse.ranks import start_ranks

        return start_ranks
    if name == "show_source":
        from tpcourse.draw import show_source

        return show_source
    raise AttributeError(f"module 'tpcourse' has no attribute {name!r}")
