"""A student who tries to cheat: each way fools the check alone, and not the guard around it in a graded notebook."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from tests.grade_cases import solution
from tests.grade_cheats import BEHIND, BODY, OVER, PATCHED
from tpcourse import check
from tpcourse.check import report, runner
from tpcourse.check.lesson03.in_rank import borrowed
from tpcourse.check.lesson03.rank_model_states import account
from tpcourse.grade import guard as graded
from tpcourse.grade.intact import Intact, changed, functions
from tpcourse.grade.nursery import _course
from tpcourse.grade.witness import ENVIRONMENT, Calls, calls_of, hidden
from tpcourse.ranks.api import running

NAME = "column_product"
SNAPSHOT = """
import sys
from tpcourse import ledger
from tpcourse.grade import intact

def owners():
    for name in [name for name in sys.modules if name.startswith("tpcourse")] + list(intact.MODULES):
        module = sys.modules.get(name)
        yield module
        yield from [one for one in list(vars(module or sys).values()) if getattr(one, "__module__", "") == name
                    and isinstance(one, type)]

usual = [(owner, dict(vars(owner))) for owner in owners() if owner]
def restore(sys=sys, ledger=ledger, usual=usual):
    sys.settrace(None)
    for one, name in ((get_ipython().tpcourse_rank, "run_call"), (ledger._installed[0], "begin")):
        vars(one).pop(name, None)
    for owner, entries in usual:
        for name, value in list(vars(owner).items()):
            if name not in entries and callable(value):
                delattr(owner, name)
            elif name in entries and value is not entries[name]:
                setattr(owner, name, entries[name])
"""


def stop_all():
    for ranks in list(running()):
        ranks.stop()


class Watched:
    """New ranks that have run an honest check, and a guard that has seen them so."""

    def __init__(self, ranks, folder, monkeypatch):
        self.ranks, self.folder = ranks, folder
        ranks.run_cell(BODY)
        check.exercise(ranks, NAME)
        calls_of(ranks)
        self.guard = graded.Guard(folder, 60.0)
        self.guard.pids, self.guard.intact = list(ranks.cluster.pids), Intact(ranks)
        monkeypatch.setattr(runner, "judge", runner.judge)  # and is as it was, afterwards
        graded._note_figures(self.guard)

    def failure(self, name=NAME):
        self.guard.lost = False
        with pytest.raises(check.CheckFailed) as caught:
            self.guard.exercise(self.ranks, name)
        return re.sub(r"\s+", " ", str(caught.value))


@pytest.fixture(scope="module")
def watched(ranks_on, tmp_path_factory):
    """For cells that leave their ranks as they were."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        stop_all()
        yield Watched(ranks_on("gloo"), tmp_path_factory.mktemp("guard"), monkeypatch)
    stop_all()


@pytest.fixture
def restored(watched):
    """For cells that do not: what they replace is put back."""
    watched.ranks.run_cell(SNAPSHOT)
    assert watched.guard.intact.differences() == []
    yield watched
    watched.ranks.run_cell("restore()")


def test_an_honest_answer_passes_and_keeps_the_next_one_s_ranks(watched, capsys):
    watched.guard.exercise(watched.ranks, NAME)
    watched.ranks.run_cell(solution("row_product").removeprefix("%%px\n"))
    watched.guard.exercise(watched.ranks, "row_product")
    assert capsys.readouterr().out.count(": passed") == 2 and not watched.guard.lost
    assert set(watched.guard.figures[0]["calls"]) == {"all_reduce"}


def test_what_the_cheats_hide_is_over_budget(watched):
    watched.ranks.run_cell(OVER)
    assert "communication ✗" in watched.failure() and not watched.guard.lost


@pytest.mark.parametrize("way", BEHIND)
def test_a_call_behind_the_ledger_is_found_though_the_check_alone_is_fooled(watched, way):
    watched.ranks.run_cell(BEHIND[way])
    check.exercise(watched.ranks, NAME)
    watched.ranks.run_cell(BEHIND[way])
    assert "more than the ledger of the check knows" in watched.failure() and watched.guard.lost


def test_a_cell_that_never_ends_is_interrupted_and_said_to_be_late(watched):
    watched.guard.cell_s, watched.guard.lost = 5.0, False  # the looks before the check are over by then
    watched.ranks.run_cell("def column_product(*args):\n    import time\n    while True: time.sleep(0.01)")
    watched.guard.before_cell(None)
    with pytest.raises(Exception, match="stopped the cell") as caught:
        watched.guard.exercise(watched.ranks, NAME)
    watched.guard.after_cell(SimpleNamespace(error_in_exec=caught.value))
    (note,) = map(json.loads, (watched.folder / "verdicts.jsonl").read_text().splitlines())
    assert note["late"] and note["cell"] == 0


@pytest.mark.parametrize("way", PATCHED)
def test_a_replaced_function_is_found_though_the_check_alone_is_fooled(restored, way):
    restored.ranks.run_cell(f"{PATCHED[way]}\n{OVER}")
    check.exercise(restored.ranks, NAME)
    assert "The answer replaces functions" in restored.failure() and restored.guard.lost


def test_an_answer_of_lesson_03_that_calls_the_check_s_own_count_is_borrowed():
    assert borrowed(_answer) == "tpcourse.check.lesson03.rank_model_states.account"


def _answer(model, optimizer):
    return account(model, optimizer, len)


def test_every_module_that_a_rank_may_import_is_there_before_an_answer_is():
    found = _course()
    probes = {f"tpcourse.check.{runner.find(name).probe}" for name in runner.LESSONS if runner.find(name).probe}
    assert probes <= set(found) and "tpcourse.wire.ring" in found and "tpcourse.zero.stage3" in found
    assert not [name for name in found if name.startswith(("tpcourse.grade", "tpcourse.cli"))]


@pytest.mark.parametrize(
    ("now", "names"),
    [
        ({"tpcourse.a": (1, 1), "os.b": (2, 2), "os.late": (9, 9), "tpcourse.lazy": (1, 1)}, set()),
        ({"tpcourse.a": (1, 7), "os.b": (2, 2)}, {"tpcourse.a"}),
        ({"tpcourse.a": (1, 1)}, {"os.b"}),
        ({"tpcourse.a": (1, 1), "os.b": (2, 2), "tpcourse.Case.__getstate__": (5, 5)}, {"tpcourse.Case.__getstate__"}),
        ({"tpcourse.a": (1, 1), "os.b": (2, 2), "<stack: x>": (5, 5)}, {"<stack: x>"}),
    ],
    ids=["late imports", "another code", "gone", "slipped in", "a caller in between"],
)
def test_another_function_or_a_new_one_where_none_is_due_is_a_difference(now, names):
    assert changed({"tpcourse.a": (1, 1), "os.b": (2, 2)}, now) == names


def test_the_course_s_classes_and_constants_are_looked_at_and_nobody_else_s():
    entries = {"LIMIT": 0.1, "Case": object, "low": 2, "call": len}
    found = functions({"tpcourse.check": entries, "os": dict(entries)})
    assert set(found) == {"os.call", *(f"tpcourse.check.{name}" for name in ("LIMIT", "Case", "call"))}
    now = functions({"tpcourse.check": {**entries, "LIMIT": 10.0}, "os": dict(entries)})
    assert changed(found, now) == {"tpcourse.check.LIMIT"}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (Calls(4, 0, [(0, "all_reduce", 40), (1, "all_gather", 80)]), ""),
        (Calls(5, 0, [(0, "all_reduce", 40), (1, "all_gather", 80)]), "made 2 calls, noted 1"),
        (Calls(4, 0, [(0, "all_reduce", 40), (1, "all_gather", 80), (2, "all_reduce", 8)]), "made 2 calls, noted 1"),
        (Calls(4, 0, [(0, "all_reduce", 40), (1, "all_gather", 96)]), "called with 96 bytes, noted 80"),
        (Calls(4, 1, [(0, "all_reduce", 40)]), "made groups of its own"),
    ],
)
def test_what_torch_counted_and_the_ledger_did_not_is_said(after, said):
    event = SimpleNamespace(op="all_gather", numel=5, dtype="float64", group=(0, 1))
    assert hidden(Calls(3, 0, [(0, "all_reduce", 40)]), after, [event]) == said


def test_the_flight_recorder_is_switched_on_for_every_rank_of_a_grader():
    assert all(int(size) > 1000 for size in ENVIRONMENT.values())


def test_a_check_that_counted_nothing_is_no_check():
    assert report.Verdict("x", []).state != "passed"
