"""Overlap: gather + product and product + scatter-sum in every form, beside torch's own, and what each hides.

On GPUs the shapes of large models in bfloat16; on the CPU tiny ones. E = 1 - (T - T_product) / (T_serial - T_product),
T_product the faster unsplit product, T_serial the faster serial variant. "back to back" lets the CPU run ahead, "one
at a time" counts launches; of each the better of eager calls and a captured graph is in the table. MLP rows are
forward and backward of two layers; its backward is the difference.
"""

from __future__ import annotations

from typing import Any

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.bare import on_bare_ranks
from tpcourse.cli.bench.fresh import progress
from tpcourse.timeline.span import hidden

COLUMNS = ("what", "variant", "ms", "E", "/ torch's", "one at a time", "E", "/ torch's", "best as", "error")
TIMED, ALONE, GRAPH = "back to back", "one at a time", ", graph"
Problem = dict[str, Any]


def measure(repeats: int | None) -> Result:
    """The table and the figures, from fresh ranks without the ledger; once more without graphs if they break a rank."""
    progress("overlap: all variants at all shapes")
    try:
        found = on_bare_ranks("overlap_here", "measure_here", repeats, True)
    except Exception as error:  # a rank that died or was ended: which type is torch's affair
        progress(f"overlap: ranks ended with graphs ({str(error).strip().splitlines()[-1]}); again without")
        found = on_bare_ranks("overlap_here", "measure_here", repeats, False)
    return summary(found)


def summary(found: dict[str, Any]) -> Result:
    """A row of the recording for each kind, shape and variant, and the table."""
    problems = found["problems"] + _backwards(found["problems"])
    rows = [row for problem in problems for row in rows_of(problem)]
    table = [_line(row) for row in rows]
    for problem in found["problems"]:
        table += [(what(problem), name, *[""] * 7, f"skipped: {why[:60]}") for name, why in problem["skipped"].items()]
    return Result(COLUMNS, table, {**found, "rows": rows})


def rows_of(problem: Problem) -> list[dict[str, Any]]:
    """Of each variant: milliseconds and E of the better of eager and graph, both ways, and the same by way."""
    ms = problem["ms"]
    torchs = {way: _fastest(problem, way, problem["torchs"]) for way in (TIMED, ALONE)}
    rows = []
    for name in ms[TIMED]:
        best = {way: _fastest(problem, way, [name]) for way in (TIMED, ALONE)}
        rows.append({
            **{key: problem[key] for key in ("kind", "shape", "dtype")},
            "variant": name,
            "ms": best[TIMED],
            "hidden": _hidden(problem, TIMED, name),
            "over_torch": _ratio(best[TIMED], torchs[TIMED]),
            "alone_ms": best[ALONE],
            "alone_hidden": _hidden(problem, ALONE, name),
            "alone_over_torch": _ratio(best[ALONE], torchs[ALONE]),
            "as_graph": ms.get(TIMED + GRAPH, {}).get(name, float("inf")) < ms[TIMED][name],
            "ms_by_way": {way: times[name] for way, times in ms.items() if name in times},
            "hidden_by_way": {way: _hidden_in(problem, way, name) for way, times in ms.items() if name in times},
            "error": problem["errors"].get(name),
        })  # fmt: skip
    return rows


def _fastest(problem: Problem, way: str, names: list[str]) -> float | None:
    """Milliseconds of the fastest of these, eager or as a graph; None if none was measured."""
    times = [problem["ms"].get(w, {}).get(name) for w in (way, way + GRAPH) for name in names]
    return min((time for time in times if time is not None), default=None)


def _hidden(problem: Problem, way: str, name: str) -> float | None:
    """E of the better of eager and graph: against the best product and the best serial variant, eager or graph."""
    times = [_fastest(problem, way, names) for names in ([name], problem["gemm"], problem["serial"])]
    return None if None in times else hidden(*times)  # type: ignore[arg-type]


def _hidden_in(problem: Problem, way: str, name: str) -> float | None:
    """E within one way: product and serial are timed as the variant is."""
    times = problem["ms"][way]
    both = [[times[one] for one in problem[key] if one in times] for key in ("gemm", "serial")]
    return hidden(times[name], min(both[0]), min(both[1])) if all(both) else None


def _ratio(ms: float | None, torchs: float | None) -> float | None:
    return None if ms is None or torchs is None else ms / torchs


def _backwards(problems: list[Problem]) -> list[Problem]:
    """The backward of each MLP: what both take, less what forward takes."""
    forwards = {tuple(one["shape"]): one for one in problems if one["kind"] == "mlp_forward"}
    return [_backward(one, forwards[tuple(one["shape"])]) for one in problems if one["kind"] == "mlp"]


def _backward(both: Problem, forward: Problem) -> Problem:
    ms = {
        way: {name: time - forward["ms"][way][name] for name, time in times.items() if name in forward["ms"][way]}
        for way, times in both["ms"].items()
        if way in forward["ms"]
    }
    return {**both, "kind": "mlp_backward", "ms": ms, "errors": {}}


def what(problem: Problem) -> str:
    """Kind and shape of a problem or a row, in words."""
    return f"{problem['kind']} {' x '.join(map(str, problem['shape']))}"


def _line(row: dict[str, Any]) -> tuple[object, ...]:
    keys = ("ms", "hidden", "over_torch", "alone_ms", "alone_hidden", "alone_over_torch")
    numbers = ("" if row[key] is None else row[key] for key in keys)
    error = "" if row["error"] is None else f"{row['error']:.1e}"
    return (what(row), row["variant"], *numbers, "graph" if row["as_graph"] else "eager", error)
