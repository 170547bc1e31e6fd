"""Lesson 08's checks on NCCL: the solutions pass with an E of their own, and the order is judged as on the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from overlap_answers import ANSWERS, RIGHT, solution

from tpcourse import check
from tpcourse.check.runner import LESSONS

NUM_GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 CUDA GPUs, found {NUM_GPUS}"),
]
NAMES = [name for name, module in LESSONS.items() if module.startswith("lesson08")]
FOLDER = Path(__file__).parent / "wrong_answers" / "08"
ON_GLOO_ALONE = ("ring_gather_product__overwrites",)
"""Its works are one on NCCL, so that to wait for the last is to wait for all."""
RIGHT_AT_TWO = ("turned", "own_again", "never_added")
WRONG = [
    path
    for path in sorted(FOLDER.glob("*.py"))
    if path.stem not in ON_GLOO_ALONE and (NUM_GPUS > 2 or not path.stem.endswith(RIGHT_AT_TWO))
]


@pytest.fixture
def ranks(ranks_on):
    found = ranks_on("nccl")
    ANSWERS.set_up(found)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes_and_hides_something_by_the_clock(ranks, name, capsys):
    ranks.run_cell(solution(name))
    check.exercise(ranks, name)
    assert re.search(r"hidden time\s+(✓ E = 0\.|✓ E = 1\.|- .*too short)", capsys.readouterr().out)


def block(ranks, name, capsys):
    """What the check says, passed or not."""
    try:
        check.exercise(ranks, name)
    except check.CheckFailed as failed:
        return str(failed)
    return capsys.readouterr().out


@pytest.mark.parametrize("way", [way for way in RIGHT if way != "a receive and a send"])
def test_the_order_of_another_right_way_is_right(ranks, way, capsys):
    """What it hides is its own affair: products in halves are slower."""
    name, answer = RIGHT[way]
    ranks.run_cell(answer)
    text = block(ranks, name, capsys)
    assert re.search(r"values\s+✓", text) and re.search(r"communication\s+✓", text), text


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_wrong_answer_fails(ranks, path):
    ranks.run_cell(path.read_text("utf-8"))
    with pytest.raises(check.CheckFailed) as caught:
        check.exercise(ranks, path.stem.split("__")[0])
    assert caught.value.state == "failed"
