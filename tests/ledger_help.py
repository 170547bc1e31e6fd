"""What the tests of the ledger share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from tpcourse import ledger as lg
from tpcourse.ledger import Log

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@contextmanager
def fresh_ledger(board: str | None = None) -> Iterator[None]:
    """A ledger that counts from 1, taken out again afterwards; a fault of its own fails the test."""
    lg.install(board)
    try:
        yield
        assert lg.ledger_fault() is None, lg.ledger_fault()
    finally:
        lg.uninstall()


def logged(fn: Callable[..., Any], *args: Any) -> Log:
    """The log of one call of `fn`, under a ledger of its own."""
    with fresh_ledger(), lg.ledger() as log:
        fn(*args)
    return log
