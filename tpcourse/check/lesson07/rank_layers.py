"""Runs in a rank: an answer around layers; what had happened, and what was held, when each began and in each gather."""

from __future__ import annotations

from typing import Any

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson07.layers import FORWARD, ORDER, Moment, Stack, allowed
from tpcourse.check.lesson07.rank_watch import Held, note_borrowed


def run(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome, ahead: int) -> Any:
    """y and the pieces of all gradients, in one list. Bytes are counted up to the first moment above the budget."""
    note_borrowed(outcome, answer)
    held = Held(outcome)
    of = Stack(groups[0].size(), given["x"].shape[1])
    seen, gathering = _Weighed(held, of, ahead), _Weighed(held, of, ahead)
    outcome.facts.update(moments=seen.moments, gathering=gathering.moments)

    def watch(kind: str, number: int) -> None:
        seen.note(kind, number)
        _wait_for_own(held, kind, len(given["pieces"][number]))

    def gather() -> None:
        for kind, number in ORDER[len(seen.moments) :][:1]:  # the layer that begins next
            gathering.note(kind, number)

    held.gathers = gather
    for layer in given["layers"]:
        layer.watch = watch
    with held.waits(), held:
        result = answer(*given.values(), *groups)
    if isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], tuple | list):
        return [result[0], *result[1]]
    return result


class _Weighed:
    """Moments, and the bytes held in each, up to the first one above the budget."""

    def __init__(self, held: Held, of: Stack, ahead: int) -> None:
        self.held, self.of, self.ahead = held, of, ahead
        self.moments: list[Moment] = []
        self.is_over = False

    def note(self, kind: str, number: int) -> None:
        """The moment is now."""
        moment = Moment(kind, number, *_calls(self.held))
        most = allowed(moment, self.of, self.ahead)
        moment.storages = () if self.is_over else tuple(self.held.sizes(most).values())
        moment.held = sum(moment.storages)
        self.is_over |= moment.held > most
        self.moments.append(moment)


def _calls(held: Held) -> tuple[Any, Any]:
    """The gathers and the reduce-scatters that have begun."""
    events = held.outcome.log._events
    gathers = [(event.numel, event.is_async, held.is_waited(event)) for event in events if event.op == "all_gather"]
    return tuple(gathers), tuple(event.numel for event in events if event.op == "reduce_scatter")


def _wait_for_own(held: Held, kind: str, size: int) -> None:
    """Wait for the weights that a layer computes with, if the answer did not: what it forgot is noted already, and the
    values do not depend on who is faster.
    """
    begun = [event for event in held.outcome.log._events if event.op == "all_gather" and event.numel == size]
    own = begun[: 1 if kind == FORWARD else 2][-1:]
    for give, event in list(held.under_way):
        if own and event is own[0] and (work := give()) is not None:
            work.wait()
