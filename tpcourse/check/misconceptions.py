"""What a wrong answer most likely believes: named faults, each with the sentence and the hint that a learner reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpcourse.check.evidence import Evidence

if TYPE_CHECKING:
    from tpcourse.check.budget import Fault


@dataclass(frozen=True)
class Finding:
    """A case that failed, its communication fault if any, and what the other cases showed."""

    evidence: Evidence
    fault: Fault | None = None
    others: tuple[Evidence, ...] = ()
    may_change: tuple[str, ...] = ()

    @property
    def fault_kind(self) -> str:
        return self.fault.kind if self.fault else ""

    @property
    def error(self) -> str:
        return next((o.error for o in self.evidence.outcomes if o.error), "")

    @property
    def all_wait_in_send(self) -> bool:
        """Whether nothing moved and the last call that each rank began was a send."""
        stuck = bool(self.evidence.failure) and not self.error
        return stuck and all(o.events and o.events[-1].op == "send" for o in self.evidence.outcomes)


@dataclass(frozen=True)
class Misconception:
    """A wrong idea: how it shows, what it is, and the way out of it."""

    name: str
    shows: Callable[[Finding], bool]
    sentence: str
    hint: str


NO_FIT = ("returned an incorrect number of gradients", "returned an invalid gradient at index")
NO_SUCH_RANK = "is not a rank of this"
NOT_IN_GROUP = ("is not part of group", "Invalid destination rank", "Invalid source rank")


def by_fault(name: str, kind: str, sentence: str, hint: str) -> Misconception:
    """A misconception that the communication axis alone gives away."""
    return Misconception(name, lambda f: f.evidence.right and f.fault_kind == kind, sentence, hint)


def by_outputs(name: str, wrong: Callable[[Evidence], list], sentence: str, hint: str) -> Misconception:
    """A misconception recognised by recomputing what the wrong algorithm returns."""
    return Misconception(name, returns(wrong), sentence, hint)


def returns(wrong: Callable[[Evidence], list]) -> Callable[[Finding], bool]:
    """Whether the ranks return what a wrong algorithm does."""

    def shows(finding: Finding) -> bool:
        evidence = finding.evidence
        return evidence.finished and not evidence.right and evidence.would_give(wrong(evidence))

    return shows


def by_playing(name: str, sentence: str, hint: str, *ways: Callable[[Evidence], list[Any]]) -> Misconception:
    """A misconception that shows in what some case's ranks return: the same as when the mistake is played here."""

    def shows(finding: Finding) -> bool:
        with np.errstate(all="ignore"):
            return any(
                evidence.finished and not evidence.right and evidence.would_give(way(evidence))
                for evidence in (finding.evidence, *finding.others)
                for way in ways
            )

    return Misconception(name, shows, sentence, hint)


def by_playing_all(name: str, sentence: str, hint: str, *ways: Callable[[Evidence], list[Any]]) -> Misconception:
    """As `by_playing`, in every case: for a mistake that looks like another one in a small group."""

    def shows(finding: Finding) -> bool:
        cases = (finding.evidence, *finding.others)
        return any(all(not e.right and e.would_give(way(e)) for e in cases) for way in ways)

    return Misconception(name, shows, sentence, hint)


def likely(finding: Finding, known: tuple[Misconception, ...]) -> Misconception | None:
    """The first misconception that shows in the finding, the exercise's own before the general ones."""
    return next((m for m in (ONLY_IN_THE_WORLD, *known, *GENERAL) if m.shows(finding)), None)


def _right_in_the_largest_alone(finding: Finding) -> bool:
    """Whether all groups but those of all ranks went wrong, and these went right; and not by chance."""
    cases = [finding.evidence, *finding.others]
    if any(outcome.unwaited for case in cases for outcome in case.outcomes):
        return False  # what nobody waits for is right where it happens to come in time
    largest = max(case.p for case in cases)
    by_size = {size: [case.right for case in cases if case.p == size] for size in {case.p for case in cases}}
    right = [size for size, found in by_size.items() if all(found)]
    wrong = [size for size, found in by_size.items() if not any(found)]
    return right == [largest] and len(wrong) >= 2 and len(wrong) + 1 == len(by_size)


ONLY_IN_THE_WORLD = Misconception(
    "only in the world",
    _right_in_the_largest_alone,
    "It is right only where the group is all ranks: some call, rank or size is the world's and not the group's.",
    "Give every call the group; `dist.get_rank(group)` and `dist.get_world_size(group)` are place and size in it.",
)

SENDS_FIRST = Misconception(
    "sends first",
    lambda f: f.all_wait_in_send or f.fault_kind == "sends first",
    "Every rank waits in its send, so no rank gets to its receive: a send ends only when its receive is there.",
    "Post both before you wait for either: `exchange` does, and so does `dist.batch_isend_irecv`.",
)

GENERAL = (
    SENDS_FIRST,
    Misconception(
        "endless",
        lambda f: f.evidence.failure_kind == "RanksOutOfTime",
        "The answer goes on and on, and was stopped: no rank waits for another, so it is a loop that does not end.",
        "See what ends the loop at that line; a counter that is not raised is the usual reason.",
    ),
    Misconception(
        "never returned",
        lambda f: f.evidence.finished and any(output is None for output in f.evidence.outputs),
        "The answer returns nothing on some rank: is a `return` missing, or only on one branch?",
        "Every rank of the group returns its result.",
    ),
    Misconception(
        "shared memory",
        lambda f: "share memory" in f.error,
        "What arrives is written into the memory that is still being sent: the chunk is overwritten "
        "before it has left.",
        "Receive into a tensor of its own, `torch.empty_like(chunk)`, and copy or add it afterwards.",
    ),
    Misconception(
        "global ranks",
        lambda f: NO_SUCH_RANK in f.error,
        "A rank was addressed that is not in the group: inside a group ranks count from 0 to p-1.",
        "Take `dist.get_rank(group)` and `dist.get_world_size(group)`, and count modulo p.",
    ),
    Misconception(
        "message to itself",
        lambda f: "is this rank itself" in f.error,
        "A rank sends to itself or receives from itself: one step too many, or a rank of the world taken for one of "
        "the group.",
        "What a rank has need not travel: copy it. Place and size come from `dist.get_rank(group)` and "
        "`dist.get_world_size(group)`.",
    ),
    Misconception(
        "ranks of the world",
        lambda f: any(words in f.error for words in NOT_IN_GROUP),
        "torch's own calls take ranks of the world: so the 1 in `dist.isend(x, 1, group)`, and the 0 in `src=0`.",
        "Say `group_dst=`, `group_src=`, or `dist.get_global_rank(group, r)`. `exchange` takes ranks of the group.",
    ),
    Misconception(
        "missing name",
        lambda f: "is not defined" in f.error,
        "A name is missing in that rank: it is misspelt, or its cell has not run since the rank was started.",
        "Run the first cells of the notebook and the answer's again: a rank that ended starts anew, without names.",
    ),
    Misconception(
        "gradients and arguments",
        lambda f: any(words in f.error for words in NO_FIT),
        "`backward` and `forward` do not fit: backward returns one gradient for each argument after `ctx`, in their "
        "order, each in the shape of its argument.",
        "None for a group, which has no gradient. Where a shape is off: is the order another, or something turned or "
        "not cut?",
    ),
    Misconception(
        "changed its input",
        lambda f: f.evidence.finished and any(set(o.changed) - set(f.may_change) for o in f.evidence.outcomes),
        "The answer works inside its input, which belongs to the caller: the values it was given are gone.",
        "Work on a copy: `x.clone()`. A slice or `view` of x is not a copy.",
    ),
    Misconception(
        "borrowed collective",
        lambda f: f.fault_kind == "collective",
        "The values come from a collective of torch; this exercise builds that collective itself.",
        "Use `exchange`, `dist.isend` and `dist.irecv`.",
    ),
    Misconception(
        "borrowed kernel",
        lambda f: f.fault_kind == "borrowed",
        "The answer calls the course's own version; this exercise writes it.",
        "From `tpcourse.wire` only `exchange`, `send` and `receive` are allowed here.",
    ),
    Misconception(
        "wrong group",
        lambda f: f.fault_kind == "group",
        "The messages leave the group that was given: they need `group=`, and ranks of the group are "
        "not those of the world.",
        "Pass `group=group` to every call. `exchange` takes ranks of the group; `dist.isend` takes "
        "`group_dst=` for them.",
    ),
    Misconception(
        "nothing travels",
        lambda f: f.evidence.right and f.fault_kind == "silence",
        "The values are right, and the ledger did not see them arrive: they came by another road "
        "than messages.",
        "Let every element that a rank does not hold come from the rank that does.",
    ),
)
