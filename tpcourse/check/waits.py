"""Runs in a rank: who waits for which call, noted as it happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


@contextmanager
def noting_waits(note: Callable[[Any], bool | None]) -> Iterator[None]:
    """In the block, `note(work)` is called before this thread waits for a work; if it says True, nobody waits.

    Trap: on gloo a second wait for the same message waits for another message.
    """
    before, mine = dist.Work.wait, threading.get_ident()

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == mine and note(work):
            return True
        return before(work, *args, **kwargs)

    _replace_wait(wait)
    try:
        yield
    finally:
        if dist.Work.wait is wait:  # else a later check replaced it, after this one was left behind
            _replace_wait(before)


def _replace_wait(function: Callable[..., Any]) -> None:
    dist.Work.wait = function
