"""The picture of a learner's progress: a square an exercise, each state with a mark of its own."""

from __future__ import annotations

import pytest

from tpcourse import draw

STATES = {"01": {"a": "passed", "b": "failed"}, "02": {"c": "not started", "d": "blocked", "e": "passed"}}


def test_a_square_an_exercise_and_a_count_a_lesson():
    ax = draw.progress(STATES)
    texts = [text.get_text() for text in ax.texts]
    assert len(ax.patches) == 5 and [texts.count(mark) for mark in "✓✗·–"] == [2, 1, 1, 1]
    assert "1 of 2" in texts and "1 of 3" in texts and "01" in texts


def test_states_differ_in_colour_too():
    fills = [patch.get_facecolor() for patch in draw.progress(STATES).patches]
    assert len(set(fills)) == 4 and fills[0] == fills[4]


def test_a_course_without_exercises_is_an_empty_sheet():
    assert len(draw.progress({}).patches) == 0


def test_an_unknown_state_is_refused():
    with pytest.raises(ValueError, match="no state is called done; there are passed, failed"):
        draw.progress({"01": {"a": "done"}})
