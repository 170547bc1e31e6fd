"""`check.prediction`: what was guessed beside what came out. A prediction is never graded."""

from __future__ import annotations

from typing import Any


def prediction(guess: Any, answer: Any, tolerance: float = 0.0) -> None:
    """Print a guess beside the answer; `...` is a guess not made. Never fails.

    `tolerance` is relative: 0.1 accepts a number that is off by a tenth.
    """
    if guess is ...:
        print(f"The answer is {answer}. You made no guess: replace ... by one before you run the next cell like this.")
    elif _near(guess, answer, tolerance):
        print(f"The answer is {answer}, as you guessed.")
    else:
        print(f"You guessed {guess}; the answer is {answer}.")


def _near(guess: Any, answer: Any, tolerance: float) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (guess, answer))
    if numbers:
        return abs(guess - answer) <= tolerance * abs(answer)
    return _plain(guess) == _plain(answer)


def _plain(value: Any) -> Any:
    """Lists, tuples and shapes with the same numbers are the same guess."""
    try:
        return tuple(_plain(item) for item in value) if not isinstance(value, str) else value.strip().lower()
    except TypeError:
        return value
