"""`check.same`: a function on ranks against a function on one device, results and every gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tpcourse.check.layout import Layout, each
from tpcourse.check.problem import Problem
from tpcourse.check.report import PASSED, Verdict
from tpcourse.check.runner import PATIENCE_S, quiet
from tpcourse.check.spec import group_sizes, one_group


def same(
    ranks: Any,
    fn: Callable[..., Any] | str,
    reference: Callable[..., Any],
    names: Sequence[str] = ("y", "dx"),
    *,
    make: dict[str, Any] | None = None,
    result: Layout | Sequence[Layout] = each(),  # noqa: B008  a frozen value
    calls: dict[str, int] | None = None,
) -> None:
    """Compare `fn(*arguments, group=...)` on 2, 3 and 4 ranks with `reference(*arguments)` on one device, in float64.

    The loss is the sum of c * y over all results on one device, with random c; `fn` must give the same gradients.
    `make` says how each argument lives on the ranks: `check.whole(5, 3)`, `check.split(5, 8, dim=1)`, `check.each(5)`;
    anything else is passed on as it is. `result` says it of each result, without sizes. `names` has the results, then
    "d" + argument for every gradient to compare. `fn` may be the name of a function in the ranks. `calls` is a budget:
    operation -> how often a rank calls it, forward and backward together.

    Shapes: with `each`, the default, the reference gets and returns a list with one tensor for each rank.
    Raises: CheckFailed that names each wrong tensor with its largest relative error; ValueError if names do not fit.
    """
    make = {"x": each(5, 3)} if make is None else make
    results = (result,) if isinstance(result, Layout) else tuple(result)
    problem = Problem(fn, reference, tuple(names), make, results, calls or {})
    verdict = Verdict(f"{problem.fn_name} against {problem.reference_name}")
    with quiet(ranks, PATIENCE_S):
        for p in group_sizes(len(ranks)):
            verdict.lines, verdict.why = problem.judge(ranks, one_group(p, len(ranks)))
            if verdict.state != PASSED:
                break
    verdict.conclude()
