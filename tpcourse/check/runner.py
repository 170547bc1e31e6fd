"""`check.exercise`: run an answer on groups of 2, 3 and 4 ranks and say what is right, what is wrong, and why."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from IPython.utils.capture import capture_output

from tpcourse.check.axes import judge
from tpcourse.check.calculation import CALCULATIONS, calculate, find_calculation
from tpcourse.check.calls import in_rank, sentence_of
from tpcourse.check.evidence import RUNNING, STUBBED, Case, Evidence, Outcome
from tpcourse.check.fresh import salted
from tpcourse.check.report import Verdict
from tpcourse.check.spec import Exercise
from tpcourse.check.weighing import WEIGHINGS, find_weighing, weigh
from tpcourse.ranks.errors import RanksError, RanksInterrupted
from tpcourse.ranks.run import Each

PATIENCE_S = 5
LIMIT_S = 60
LESSONS = {
    "ring_all_gather": "lesson01.all_gather",
    "ring_reduce_scatter": "lesson01.reduce_scatter",
    "ring_all_reduce": "lesson01.all_reduce",
    "tree_broadcast": "lesson01.broadcast",
    "pairwise_all_to_all": "lesson01.all_to_all",
    "two_groups": "lesson01.two_groups",
    "mean_gradients": "lesson04.mean_gradients",
    "bucketed_gradients": "lesson04.bucketed_gradients",
    "accumulated_gradients": "lesson04.accumulated_gradients",
    "weighted_gradients": "lesson04.weighted_gradients",
    "overlapped_gradients": "lesson04.overlapped_gradients",
    "column_product": "lesson05.column_product",
    "row_product": "lesson05.row_product",
    "parallel_mlp": "lesson05.parallel_mlp",
    "parallel_attention": "lesson05.parallel_attention",
    "vocabulary_loss": "lesson05.vocabulary_loss",
    "gradient_norm": "lesson05.gradient_norm",
    "residual_mlp": "lesson05.residual_mlp",
    "enter_and_leave": "lesson06.enter_and_leave",
    "sequence_block": "lesson06.sequence_block",
    "block_gradients": "lesson06.block_gradients",
    "regathered_column": "lesson06.regathered_column",
    "uneven_tokens": "lesson06.uneven_tokens",
    "sharded_adam": "lesson07.sharded_adam",
    "scattered_gradients": "lesson07.scattered_gradients",
    "clipped_piece": "lesson07.clipped_piece",
    "layered_step": "lesson07.layered_step",
    "prefetched_step": "lesson07.prefetched_step",
    "reloaded_adam": "lesson07.reloaded_adam",
    "gathered_meanwhile": "lesson08.gathered_meanwhile",
    "ring_gather_product": "lesson08.ring_gather_product",
    "ring_product_scatter": "lesson08.ring_product_scatter",
    "ordered_backward": "lesson08.ordered_backward",
    "pieced_product_scatter": "lesson08.pieced_product_scatter",
}


def exercise(ranks: Any, name: str) -> None:
    """Check the answer `name`, a function that a `%%px` cell of this notebook defined in the ranks; or, where nothing
    is sent, one that the notebook itself defined.

    Values against the one-device answer, then messages against the budget, on groups of 2, 3 and 4 ranks where there
    are as many, with new random inputs each time. Prints one block if it passes.
    Raises: CheckFailed with what was found, the likely misconception and a hint; ValueError for an unknown name.
    """
    if name in LESSONS and len(ranks) < 2:
        raise ValueError("a check needs at least 2 ranks and 1 is running: call start_ranks(2), or more")
    with quiet(ranks, PATIENCE_S) as shown:
        verdict = _verdict(ranks, name)
    verdict.printed = shown.stdout
    verdict.conclude()


def _verdict(ranks: Any, name: str) -> Verdict:
    if name in CALCULATIONS:
        return calculate(ranks, find_calculation(name))
    if name in WEIGHINGS:
        return _undefined(name, ranks.run(in_rank, "defines", name)) or weigh(ranks, find_weighing(name))
    spec = find(name)
    defined, groups = zip(*ranks.run(in_rank, "prepare", name, spec.imports), strict=True)
    return _undefined(name, defined) or judge(spec, list(_evidence(ranks, spec, groups)))


def find(name: str) -> Exercise:
    """The exercise of this name."""
    if name not in LESSONS:
        raise ValueError(f"no exercise is named {name!r}; there are {', '.join([*LESSONS, *CALCULATIONS, *WEIGHINGS])}")
    return importlib.import_module(f"tpcourse.check.{LESSONS[name]}").EXERCISE


@contextmanager
def quiet(ranks: Any, patience_s: float) -> Iterator[Any]:
    """Short patience, as inputs are tiny; what the ranks print is kept apart, as a check is one block."""
    with ranks.patient(min(ranks.patience, patience_s)), ranks.within(LIMIT_S), capture_output() as shown:
        yield shown


def _undefined(name: str, defined: Sequence[bool]) -> Verdict | None:
    if all(defined):
        return None
    hint = f"Write the answer, run its cell, and run this one again. (No rank knows the name {name}.)"
    if any(defined):
        lacking = [rank for rank, known in enumerate(defined) if not known]
        hint = f"Rank {lacking[0]} does not know {name}: run the answer's cell on every rank, with %%px and no targets."
    elif _kernel_defines(name):
        hint = f"{name} is defined in the notebook and not in the ranks: begin the answer's cell with %%px."
    return Verdict(name, hint=hint, started=False)


def _kernel_defines(name: str) -> bool:
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and callable(shell.user_ns.get(name))


def _evidence(ranks: Any, spec: Exercise, groups: Sequence[Any]) -> Iterator[Evidence]:
    """Run the cases, the small groups first; stop at the first that does not end by returning."""
    cases = salted(spec, spec.cases(len(ranks)))
    prepare_groups(ranks, cases, groups)
    for case in cases:
        inputs = spec.make(case, np.random.default_rng(secrets.randbits(64)))
        evidence = run_case(ranks, spec, case, inputs)
        yield evidence
        if not evidence.finished:
            return


def prepare_groups(ranks: Any, cases: list[Case], known: Sequence[Any]) -> None:
    """Make the sub-groups of the cases that are not known to every rank yet."""
    wanted = dict.fromkeys((name, part) for case in cases for name, parts in case.groups.items() for part in parts)
    missing = tuple(key for key in wanted if not all(key in groups for groups in known))
    if missing:
        ranks.run(in_rank, "make_groups", missing)


def run_case(ranks: Any, spec: Exercise, case: Case, inputs: list[dict[str, Any]]) -> Evidence:
    """One call of the answer in the ranks of the case; an error or a hang is evidence too."""
    expected = spec.expected(case, inputs)
    each = Each(dict(zip(case.members, inputs, strict=True)))  # what another rank has, an answer has to ask for
    outcomes, failure, kind = collect(ranks, case, "run_case", spec.name, case, each, spec.probe)
    return Evidence(case, inputs, expected, outcomes, failure, kind)


def collect(ranks: Any, case: Case, function: str, *args: Any) -> tuple[list[Outcome], str, str]:
    """Call `function` in the ranks: the outcomes of the case's ranks, a sentence if it failed, and the error's name."""
    token = secrets.token_hex(8)
    try:
        results, failure, kind = ranks.run(in_rank, "attempt", token, function, *args), "", ""
    except RanksInterrupted:
        raise
    except RanksError as error:
        results, failure, kind = ranks.run(in_rank, "last_outcome", token), sentence_of(error), type(error).__name__
    outcomes = [results[rank] or Outcome(state=RUNNING) for rank in case.members]
    stubbed = any(outcome.state == STUBBED for outcome in outcomes)
    return outcomes, "" if stubbed else failure, kind
