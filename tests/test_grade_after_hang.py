"""A check that hung costs its own points and no other's: it leaves no function replaced for the guard to find."""

from __future__ import annotations

import pytest

from tpcourse import check
from tpcourse.check import runner
from tpcourse.grade.intact import Intact

HANGS = """
import torch
import torch.distributed as dist

def {name}(*given):
    if dist.get_rank(given[-1]) == 0:
        dist.all_reduce(torch.ones(1), group=given[-1], async_op=True).wait()
"""
WATCHES_WAITS = ["scattered_gradients", "layered_step", "pieced_product_scatter"]


@pytest.mark.parametrize("name", WATCHES_WAITS)
def test_a_check_that_hung_leaves_all_functions_as_they_were(shared_ranks, monkeypatch, name):
    shared_ranks.run_cell(f"def {name}(*given):\n    raise ValueError")
    with pytest.raises(check.CheckFailed):
        check.exercise(shared_ranks, name)  # imports what it needs
    intact = Intact(shared_ranks)
    shared_ranks.run_cell(HANGS.format(name=name))
    monkeypatch.setattr(runner, "PATIENCE_S", 1.5)
    with pytest.raises(check.CheckFailed, match="did not end"):
        check.exercise(shared_ranks, name)
    assert intact.differences() == []
