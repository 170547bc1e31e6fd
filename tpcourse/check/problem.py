"""One comparison of `check.same`: inputs and one-device answer, the call on the ranks, the lines that come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.check.calls import in_rank
from tpcourse.check.clues import Wrong, clue
from tpcourse.check.compare import first_difference, size_of
from tpcourse.check.evidence import RETURNED, Case, Outcome
from tpcourse.check.layout import Layout
from tpcourse.check.report import FAILED, PASSED, Line
from tpcourse.check.runner import collect, prepare_groups

SEED = 20


@dataclass(frozen=True)
class Problem:
    """A function on ranks, the function on one device, and how each argument and result lives on the ranks."""

    fn: Callable[..., Any] | str
    reference: Callable[..., Any]
    names: tuple[str, ...]
    make: dict[str, Any]
    results: tuple[Layout, ...]
    calls: dict[str, int]

    def __post_init__(self) -> None:
        known = {f"d{name}" for name, layout in self.make.items() if isinstance(layout, Layout)}
        unknown = [name for name in self.names[len(self.results) :] if name not in known]
        if len(self.names) < len(self.results) or unknown:
            raise ValueError(
                f"names = {list(self.names)} must be {len(self.results)} for the results and then gradients, "
                f"each one of {', '.join(sorted(known))}"
            )

    @property
    def fn_name(self) -> str:
        return self.fn if isinstance(self.fn, str) else self.fn.__name__

    @property
    def reference_name(self) -> str:
        return getattr(self.reference, "__name__", "the one-device answer")

    @property
    def gradients(self) -> list[str]:
        """The arguments whose gradients are compared."""
        return [name.removeprefix("d") for name in self.names[len(self.results) :]]

    def judge(self, ranks: Any, case: Case) -> tuple[list[Line], str]:
        """The lines of one group of ranks, and the likely misconception."""
        values = self.draw(case.p)
        whole_results, whole_gradients, factors = self.on_one_device(values)
        layouts = [*self.results, *(self.make[name] for name in self.gradients)]
        wholes = [*whole_results, *whole_gradients]
        expected = [layout.on_ranks(value, case.p) for layout, value in zip(layouts, wholes, strict=True)]
        outcomes, failure = self.on_ranks(ranks, case, values, factors)
        if failure:
            return [Line("values", FAILED, f"at {case.p} ranks: {failure}")], ""
        return self.lines(case, values, expected, outcomes)

    def draw(self, p: int) -> dict[str, Any]:
        """One-device values of all arguments."""
        generator = np.random.default_rng(SEED + p)
        return {
            name: layout.draw(generator, p) if isinstance(layout, Layout) else layout
            for name, layout in self.make.items()
        }

    def on_one_device(self, values: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Results, gradients and the loss's factors, as arrays (a list of arrays where each rank has another one)."""
        import torch

        given = {name: _leaves(v) if isinstance(self.make[name], Layout) else v for name, v in values.items()}
        output = self.reference(*given.values())
        outputs = [output] if len(self.results) == 1 else list(output)
        generator = np.random.default_rng(SEED)
        factors = [_map(lambda y: generator.uniform(0.5, 1.5, tuple(y.shape)), y) for y in outputs]
        if self.gradients:
            flat = zip(_flat(outputs), _flat(factors), strict=True)
            torch.stack([(y * torch.from_numpy(c)).sum() for y, c in flat]).sum().backward()
        results = [_map(lambda y: y.detach().numpy(), y) for y in outputs]
        return results, [_map(_gradient, given[name]) for name in self.gradients], factors

    def on_ranks(
        self, ranks: Any, case: Case, values: dict[str, Any], factors: list[Any]
    ) -> tuple[list[Outcome], str]:
        """The outcomes of the ranks, and what went wrong instead, if anything."""
        prepare_groups(ranks, [case], ranks.run(in_rank, "known_groups"))
        shares = [
            self.make[name].on_ranks(value, case.p) if isinstance(self.make[name], Layout) else [value] * case.p
            for name, value in values.items()
        ]
        arguments = [dict(zip(values, share, strict=True)) for share in zip(*shares, strict=True)]
        spread = [layout.on_ranks(c, case.p) for layout, c in zip(self.results, factors, strict=True)]
        cotangents = [list(share) for share in zip(*spread, strict=True)]
        call = (self._portable(), case, arguments, cotangents, self.gradients)
        outcomes, failure, _ = collect(ranks, case, "run_same", *call)
        raised = next((f"rank {r} of the group raised {o.error}" for r, o in enumerate(outcomes) if o.error), "")
        if all(outcome.state == RETURNED for outcome in outcomes) and not failure:
            return outcomes, ""
        return outcomes, raised or failure or f"{self.fn_name} is not written yet"

    def _portable(self) -> Any:
        """The function by name where a rank can import it, else itself."""
        if isinstance(self.fn, str) or self.fn.__module__ == "__main__":
            return self.fn
        return f"{self.fn.__module__}:{self.fn.__qualname__}"

    def lines(
        self, case: Case, values: dict[str, Any], expected: list[list[Any]], outcomes: list[Outcome]
    ) -> tuple[list[Line], str]:
        """One line for each tensor, one for the calls if there is a budget."""
        lines, why = [], ""
        for index, name in enumerate(self.names):
            got = [outcome.result[index] for outcome in outcomes]
            found = [first_difference(a, b) for a, b in zip(got, expected[index], strict=True)]
            rank = max(range(case.p), key=lambda r: size_of(found[r]))
            if found[rank] is None:
                lines.append(Line(name, PASSED, "equal on every rank"))
                continue
            missing = "no gradient arrived" if got[rank] is None and index >= len(self.results) else found[rank]
            lines.append(Line(name, FAILED, f"rank {rank} of {case.p}: {missing}"))
            arguments = {key: value for key, value in values.items() if isinstance(self.make[key], Layout)}
            why = why or clue(Wrong(name, got, expected[index], arguments, index >= len(self.results)))
        return [*lines, *self._calls_line(outcomes)], why

    def _calls_line(self, outcomes: list[Outcome]) -> list[Line]:
        if not self.calls:
            return []
        for rank, outcome in enumerate(outcomes):
            made = Counter(event.op for event in outcome.events)
            if made != Counter(self.calls):
                text = f"rank {rank} calls {_counted(made)}; the budget is {_counted(self.calls)}"
                return [Line("communication", FAILED, text)]
        return [Line("communication", PASSED, _counted(self.calls))]


def _counted(calls: dict[str, int]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(calls.items()) if count) or "nothing"


def _flat(values: list[Any]) -> list[Any]:
    return [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    return [function(item) for item in value] if isinstance(value, list | tuple) else function(value)


def _leaves(value: Any) -> Any:
    import torch

    return _map(lambda array: torch.from_numpy(array.copy()).requires_grad_(), value)


def _gradient(leaf: Any) -> np.ndarray:
    return np.zeros(tuple(leaf.shape)) if leaf.grad is None else leaf.grad.numpy()
