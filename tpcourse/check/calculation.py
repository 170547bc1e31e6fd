"""Exercises whose answer is a calculation: a function of the notebook, numbers in and numbers out, nothing sent."""

from __future__ import annotations

import copy
import importlib
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from types import FrameType
from typing import Any

import numpy as np
from IPython.utils.capture import capture_output

from tpcourse.check.report import FAILED, PASSED, Line, Verdict

CALCULATIONS = {
    "fit_line": "lesson02.fit_line",
    "predict": "lesson02.predict",
    "bucket_bytes": "lesson02.bucket_bytes",
    "tensor_parallel": "lesson02.tensor_parallel",
}
START = "Write the answer in the cell above, run it, and run this cell again."
BORROWED = "The answer calls the course's own version; this exercise writes it."


@dataclass(frozen=True)
class Trial:
    """Arguments, what the answer returned for them, and what was wrong with that, in a sentence part."""

    arguments: tuple[Any, ...]
    result: Any = None
    fault: str = ""
    raised: bool = False
    borrowed: bool = False


@dataclass(frozen=True)
class Mistake:
    """A wrong idea: `gives` computes what it returns for the arguments; or `shows` recognises it in a failed trial."""

    sentence: str
    hint: str
    gives: Callable[..., Any] | None = None
    shows: Callable[[Trial], bool] | None = None


@dataclass(frozen=True)
class Calculation:
    """All that a check knows of an answer: inputs and their names, what is right, the course's module, wrong ideas.

    `fault(result, *arguments)` is empty for a right result, else a sentence part. `on_ranks(ranks, answer)` adds a
    line that holds the answer against a run.
    """

    name: str
    values: str
    arguments: tuple[str, ...]
    cases: Callable[[np.random.Generator], Sequence[tuple[Any, ...]]]
    fault: Callable[..., str]
    own: str
    mistakes: tuple[Mistake, ...] = ()
    same: Callable[[Any, Any], bool] = field(default=lambda a, b: near(a, b))
    on_ranks: Callable[[Any, Callable[..., Any]], Line] | None = None


def find_calculation(name: str) -> Calculation:
    """The calculation of this name."""
    return importlib.import_module(f"tpcourse.check.{CALCULATIONS[name]}").EXERCISE


def calculate(ranks: Any, spec: Calculation) -> Verdict:
    """Call the answer with new random inputs, then hold it against a run where the exercise asks for one."""
    answer = namespace().get(spec.name)
    if not callable(answer):
        return Verdict(spec.name, hint=_not_here(ranks, spec.name), started=False)
    try:
        trials = [attempt(spec, answer, case) for case in spec.cases(np.random.default_rng(secrets.randbits(64)))]
    except NotImplementedError:
        return Verdict(spec.name, hint=START, started=False)
    failed = next((trial for trial in trials if trial.fault), None)
    if failed is None:
        lines = [Line("values", PASSED, spec.values)]
        return Verdict(spec.name, lines + ([spec.on_ranks(ranks, answer)] if spec.on_ranks else []))
    mistake = likely(spec, [trial for trial in trials if trial.fault])
    verdict = Verdict(spec.name, [Line("values", FAILED, failed.fault)])
    if mistake:
        verdict.why, verdict.hint = mistake.sentence, mistake.hint
    return verdict


def namespace() -> dict[str, Any]:
    """The names of the notebook's cells."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        return shell.user_ns
    import __main__

    return vars(__main__)


def _not_here(ranks: Any, name: str) -> str:
    from tpcourse.check.calls import in_rank

    if any(ranks.run(in_rank, "defines", name)):
        return f"{name} is defined in the ranks and not in the notebook: this answer's cell has no %%px."
    return f"Write the answer, run its cell, and run this one again. (The notebook does not know the name {name}.)"


def attempt(spec: Calculation, answer: Callable[..., Any], arguments: tuple[Any, ...]) -> Trial:
    """One call of the answer, with copies of the arguments; what it raises, prints or changes is part of the trial."""
    given = copy.deepcopy(arguments)
    seen: list[str] = []
    where = ", ".join(f"{name} = {shown(value)}" for name, value in zip(spec.arguments, arguments, strict=True))
    try:
        with capture_output(), _watched(spec.own, seen):
            result = answer(*given)
    except NotImplementedError:
        raise
    except Exception as error:  # whatever it raises is a wrong answer
        return Trial(arguments, None, f"raised {type(error).__name__}: {error} (for {where})", raised=True)
    if seen:
        return Trial(arguments, result, f"calls {seen[0]}; this exercise writes it", borrowed=True)
    if not _equal(given, arguments):
        return Trial(arguments, result, f"changes its arguments (given {where})")
    fault = _fault(spec, result, arguments)
    return Trial(arguments, result, f"{fault} (for {where})" if fault else "")


def _fault(spec: Calculation, result: Any, arguments: tuple[Any, ...]) -> str:
    """What is wrong with a result, also with one that cannot be compared."""
    try:
        return spec.fault(result, *arguments)
    except Exception:  # whatever it is, it is no right answer
        return f"gives {shown(result)}, and that is not what the task asks for"


@contextmanager
def _watched(own: str, seen: list[str]) -> Iterator[None]:
    """Note every function of the course's own module that is called meanwhile."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and f"{module}.".startswith(f"{own}."):
            seen.append(f"{module}.{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def likely(spec: Calculation, failed: Sequence[Trial]) -> Mistake | None:
    """The first wrong idea that explains every trial that failed."""
    if any(trial.borrowed for trial in failed):
        return Mistake(BORROWED, "Write the calculation out; the lesson shows how.")
    if any(trial.raised for trial in failed):
        return None
    return next((mistake for mistake in spec.mistakes if all(_explains(spec, mistake, t) for t in failed)), None)


def _explains(spec: Calculation, mistake: Mistake, trial: Trial) -> bool:
    try:
        if mistake.shows is not None:
            return bool(mistake.shows(trial))
        return mistake.gives is not None and spec.same(trial.result, mistake.gives(*trial.arguments))
    except Exception:  # a result that nobody can compare
        return False


def near(a: Any, b: Any, tolerance: float = 1e-6) -> bool:
    """Whether two results agree: numbers up to rounding, lists and dicts entry by entry."""
    if isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(near(a[key], b[key], tolerance) for key in b)
    if isinstance(b, list | tuple):
        alike = isinstance(a, list | tuple | np.ndarray) and len(a) == len(b)
        return alike and all(near(x, y, tolerance) for x, y in zip(a, b, strict=True))
    try:
        return bool(abs(float(a) - float(b)) <= tolerance * abs(float(b)))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def shown(value: Any) -> str:
    """A value in few words: other numbers than whole ones to four digits, long lists and texts cut."""
    if isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim):
        return f"({listed(value)})" if isinstance(value, tuple) else f"[{listed(value)}]"
    if isinstance(value, dict):
        items = [f"{shown(key)}: {shown(item)}" for key, item in list(value.items())[:4]]
        return f"{{{', '.join(items + ['...'] * (len(value) > 4))}}}"
    if is_dataclass(value) and not isinstance(value, type):
        numbers = ((each.name, getattr(value, each.name)) for each in fields(value))
        return f"({', '.join(f'{name} = {shown(n)}' for name, n in numbers if isinstance(n, int | float))})"
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return str(value)[:60]


def listed(values: Any) -> str:
    """Values one after another; of a long list the first four, of lists in it the first two."""
    most = 2 if any(isinstance(item, tuple | list) for item in values) and len(values) > 4 else 4
    return ", ".join([shown(item) for item in values[:most]] + ["..."] * (len(values) > most))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)
