"""Shared by all tests: a fork server for the whole run, and one set of four ranks."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def fork_server():
    """A fork server that preloaded torch, so that ranks start in a second or two."""
    from tpcourse.ranks import preload_server

    with preload_server() as path:
        yield path


@pytest.fixture(scope="session")
def shared_ranks(fork_server):
    """Four ranks on the CPU (on GPUs as many as there are), started once; tests leave them working."""
    from tpcourse import start_ranks

    ranks = start_ranks()
    yield ranks
    ranks.stop()
