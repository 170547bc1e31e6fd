"""Shared by all tests: one fork server, and one set of ranks at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from tpcourse.ranks import Ranks, preload_server, start_ranks
from tpcourse.ranks.api import running


def pytest_collection_finish() -> None:
    """What was imported until now stays, and need not be looked through whenever garbage is collected."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[str]:
    """A fork server that preloaded torch, so that ranks start in a second or two."""
    with preload_server() as path:
        yield path


@pytest.fixture(scope="session")
def ranks_on(fork_server: str) -> Iterator[Callable[[str], Ranks]]:
    """The running ranks of a backend; tests leave them working."""

    def of(backend: str) -> Ranks:
        if running() and running()[0].backend != backend:
            running()[0].stop()
        return running()[0] if running() else start_ranks(4 if backend == "gloo" else None, backend)

    yield of
    for ranks in list(running()):
        ranks.stop()


@pytest.fixture
def shared_ranks(ranks_on: Callable[[str], Ranks]) -> Ranks:
    """Four ranks on the CPU, started once for all tests."""
    return ranks_on("gloo")
