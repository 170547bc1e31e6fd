"""Ranks in a notebook: start, drive, watch, stop."""

from tpcourse.ranks.api import Ranks, start_ranks
from tpcourse.ranks.errors import RankDied, RankError, RanksDisagree, RanksError, RanksInterrupted, RanksStuck
from tpcourse.ranks.spawn import preload_server

__all__ = [
    "Ranks",
    "RankDied",
    "RankError",
    "RanksDisagree",
    "RanksError",
    "RanksInterrupted",
    "RanksStuck",
    "preload_server",
    "start_ranks",
]
