"""What every failed check tells: the learner's line, what was printed, and the mistakes that all exercises know."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tpcourse import check
from tpcourse.check import runner
from tpcourse.check.evidence import Outcome
from tpcourse.check.misconceptions import ONLY_IN_THE_WORLD

NAME = "ring_all_gather"
RIGHT = """from tpcourse.wire import exchange

def ring_all_gather(shard, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    pieces = [torch.empty_like(shard) for _ in range(p)]
    pieces[r] = shard.clone()
    print("place", r)
    for step in range(p - 1):
        exchange(pieces[(r - step) % p], (r + 1) % p, pieces[(r - step - 1) % p], (r - 1) % p, group=group)
    return torch.cat(pieces)
"""


@pytest.fixture
def told(shared_ranks):
    """What the check says of an answer, on one line."""

    def of(answer: str) -> str:
        shared_ranks.run_cell(answer)
        with shared_ranks.patient(3), pytest.raises(check.CheckFailed) as caught:
            check.exercise(shared_ranks, NAME)
        return " ".join(str(caught.value).split())

    return of


def test_an_error_is_told_with_the_line_of_the_answer_and_whole_words(told):
    text = told(RIGHT.replace('print("place", r)', "pieces[p] = shard  # none there"))
    assert "raised IndexError: list assignment index out of range at line 7 (at 2 ranks" in text


def test_what_a_failed_answer_printed_is_shown_and_of_much_the_end(told):
    text = told(RIGHT.replace("return torch.cat(pieces)", "return torch.cat(pieces[::-1])"))
    assert "printed" in text and "place 3" in text
    many = told(RIGHT.replace('print("place", r)', "print(*range(50), sep='\\n')").replace("(pieces)", "(pieces[1:])"))
    assert "printed ... " in many and many.endswith("47 48 49") and " 3 " not in many.split("printed")[1]


def test_what_a_right_answer_printed_is_not(shared_ranks, capsys):
    shared_ranks.run_cell(RIGHT)
    check.exercise(shared_ranks, NAME)
    out = capsys.readouterr().out
    assert out.startswith(f"{NAME}: passed") and "place" not in out


def test_a_rank_of_the_group_given_to_a_call_that_takes_those_of_the_world_is_named(told):
    sends = "dist.send(pieces[r], (r + 1) % p, group=group)"
    text = told(RIGHT.replace('print("place", r)', sends))
    assert "torch's own calls take ranks of the world" in text and "group_dst=" in text
    assert "object at" not in text


def test_a_message_to_oneself_is_named(told):
    text = told(RIGHT.replace('print("place", r)', "exchange(pieces[r], r, pieces[r - 1], r, group=group)"))
    assert "sends to itself or receives from itself" in text


def test_a_missing_name_is_told_with_what_may_have_become_of_it(told):
    text = told(RIGHT.replace("exchange(pieces", "exhcange(pieces"))
    assert "name 'exhcange' is not defined at line 9" in text and "it is misspelt, or its cell has not run" in text


def test_a_loop_without_an_end_is_stopped_and_named_with_its_line(told, monkeypatch):
    monkeypatch.setattr(runner, "LIMIT_S", 4)
    text = told(RIGHT.replace('print("place", r)', "while True: p = p"))
    who = "(rank [23]|ranks 2-3) (is computing|are computing|does not answer|do not answer)"  # a busy machine's too
    assert re.search(rf"Its time was up\. No rank waits for another: {who} at line 7", text), text
    assert "it is a loop that does not end" in text, text
    assert "printed" not in text


STRANGE = [("{1: shard}", "not a dict of 1"), ("shard.numpy()", "not a NumPy array")]


@pytest.mark.parametrize(("result", "words"), STRANGE)
def test_a_result_of_another_type_is_named_and_not_printed(told, result, words):
    assert words in told(RIGHT.replace("torch.cat(pieces)", result))


@pytest.mark.parametrize(
    ("right", "shows"),
    [
        ({2: [False], 3: [False, False], 4: [True]}, True),
        ({2: [True], 3: [False], 4: [True]}, False),
        ({2: [False], 3: [True, False], 4: [True]}, False),
        ({2: [False], 3: [False], 4: [False]}, False),
        ({2: [False], 4: [True]}, False),
        ({2: [False], 3: [False]}, False),
    ],
)
def test_right_in_the_largest_group_alone_means_the_world_was_taken_for_the_group(right, shows):
    cases = [SimpleNamespace(p=p, right=one, outcomes=[]) for p, found in right.items() for one in found]
    finding = SimpleNamespace(evidence=cases[0], others=cases[1:])
    assert ONLY_IN_THE_WORLD.shows(finding) is shows
    cases[0].outcomes.append(Outcome(unwaited=["all_reduce"]))  # right where the sum came in time
    assert not ONLY_IN_THE_WORLD.shows(finding)
