"""A check is not fooled: by what an answer prints, hides, borrows or replaces."""

from __future__ import annotations

from functools import partial

import exercise_help
import pytest

from tpcourse import check

RIGHT = """
from tpcourse.wire import exchange

def ring_all_gather(piece, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    result = piece.new_empty(p, len(piece))
    result[r] = piece
    for step in range(p - 1):
        exchange(result[(r - step) % p], (r + 1) % p, result[(r - step - 1) % p], (r - 1) % p, group=group)
    return result.flatten()
"""


@pytest.fixture
def ranks(shared_ranks):
    shared_ranks.run_cell("globals().pop('ring_all_gather', None)")
    with shared_ranks.patient(3.0):
        yield shared_ranks
    shared_ranks.run_cell("for name in ('check', 'ledger', 'print', 'ring_all_gather'): globals().pop(name, None)")


failure = partial(exercise_help.failure, name="ring_all_gather")


def test_an_answer_that_prints_passed_does_not_pass_and_its_print_is_not_shown(ranks, capsys):
    ranks.run_cell("def ring_all_gather(piece, group):\n    print('ring_all_gather: passed')\n    return piece")
    assert "ring_all_gather: failed" in failure(ranks)
    assert capsys.readouterr().out == ""


def test_replaced_names_in_the_ranks_change_nothing(ranks, capsys):
    ranks.run_cell(RIGHT + "\ncheck = ledger = None\nprint = lambda *_: None")
    check.exercise(ranks, "ring_all_gather")
    assert capsys.readouterr().out.startswith("ring_all_gather: passed")


def test_values_that_came_by_no_message_are_rejected(ranks):
    ranks.run_cell("""
import pickle
store = dist.distributed_c10d._get_default_store()
def ring_all_gather(piece, group):
    members = dist.get_process_group_ranks(group)
    store.set(f"{members} {len(piece)} {rank}", pickle.dumps(piece.tolist()))
    found = [pickle.loads(store.get(f"{members} {len(piece)} {other}")) for other in members]
    return torch.cat([torch.tensor(one, dtype=piece.dtype, device=device) for one in found])
""")
    assert "they came by another road than messages" in failure(ranks)


@pytest.mark.parametrize(
    "body",
    [
        "from tpcourse.wire import ring_all_gather as ready\ndef ring_all_gather(piece, group):\n"
        "    return ready(piece, group=group)",
        "from tpcourse import wire\ndef ring_all_gather(piece, group):\n"
        "    return wire.ring_all_gather(piece, group=group)",
        "def ring_all_gather(piece, group):\n    from tpcourse.wire import ring_all_gather\n"
        "    return ring_all_gather(piece, group=group)",
        "from tpcourse import wire\ndef helper(piece, group):\n    return wire.ring_all_gather(piece, group=group)\n"
        "def ring_all_gather(piece, group):\n    return helper(piece, group)",
    ],
    ids=["imported", "by module", "imported inside", "by a helper"],
)
def test_the_courses_own_kernel_is_not_an_answer(ranks, body):
    ranks.run_cell(body)
    assert "calls the course's own version" in failure(ranks)


def test_an_answer_on_some_ranks_only_is_not_started(ranks):
    ranks.run_cell(RIGHT, targets=[0])
    assert "not started hint Rank 1 does not know ring_all_gather" in failure(ranks)


def test_an_answer_in_the_notebook_instead_of_the_ranks_is_told_so(ranks, monkeypatch):
    import IPython

    class Shell:
        user_ns = {"ring_all_gather": print}

    monkeypatch.setattr(IPython, "get_ipython", Shell)
    assert "begin the answer's cell with %%px" in failure(ranks)


def test_an_answer_in_another_dtype_is_rejected(ranks):
    ranks.run_cell(RIGHT.replace("return result.flatten()", "return result.flatten().float()"))
    assert "the result on rank 0 is float32, and the input is float64" in failure(ranks)


def test_an_error_of_an_answer_is_shown_with_the_ranks_of_its_case(ranks):
    ranks.run_cell("def ring_all_gather(piece, group):\n    return piece / missing")
    assert "raised NameError: name 'missing' is not defined at line 2 (at 2 ranks" in failure(ranks)


def test_feedback_shows_neither_the_check_nor_a_traceback(ranks):
    ranks.run_cell("def ring_all_gather(piece, group):\n    return piece")
    with pytest.raises(check.CheckFailed) as caught:
        check.exercise(ranks, "ring_all_gather")
    assert caught.value._render_traceback_() == str(caught.value).splitlines()
    assert "def " not in str(caught.value)
    assert "tpcourse/check" not in str(caught.value)


def test_patience_is_what_it_was_after_a_check(ranks):
    before = ranks.patience
    ranks.run_cell(RIGHT)
    check.exercise(ranks, "ring_all_gather")
    assert ranks.patience == before
