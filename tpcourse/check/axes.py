"""From evidence to verdict: one line per axis, and the likely misconception."""

from __future__ import annotations

import re
import textwrap

from tpcourse.check.budget import Fault, first_fault
from tpcourse.check.compare import first_difference, size_of
from tpcourse.check.evidence import STUBBED, Evidence
from tpcourse.check.misconceptions import Finding, likely
from tpcourse.check.report import FAILED, NOT_JUDGED, PASSED, Line, Verdict
from tpcourse.check.spec import Exercise
from tpcourse.watch.failure import SECONDARY

WRITES_IT = "this exercise writes it"
OBJECT = re.compile(r" <[\w.]+ object at 0x[0-9a-f]+>")
START = "Write the answer in the cell above, run it, and run this cell again."


def judge(spec: Exercise, cases: list[Evidence]) -> Verdict:
    """Judge all cases of an exercise; of those that fail, the largest tells most and is shown, a hang before all."""
    if any(outcome.state == STUBBED for case in cases for outcome in case.outcomes):
        return Verdict(spec.name, hint=START, started=False)
    broken = [case for case in cases if values_fault(case, spec.may_change)]
    if broken:
        return _wrong_values(spec, max(broken, key=_weight), cases)
    faults = [(case, fault) for case in cases if (fault := fault_of(spec, case))]
    passed = Line("values", PASSED, spec.values)
    if faults:
        return _wrong_messages(spec, *max(faults, key=lambda found: _weight(found[0])), passed, cases)
    lines = [passed, Line("communication", PASSED, spec.communication)]
    if spec.third is None:
        return Verdict(spec.name, lines)
    third = spec.third(cases)
    if third.state != FAILED:
        return Verdict(spec.name, [*lines, third])
    return _explained(spec, [*lines, third], _finding(spec, cases[-1], Fault(third.axis, third.text), cases))


def _weight(case: Evidence) -> tuple[bool, int, int]:
    return not case.finished, case.p, sum(case.case.sizes.values())


def fault_of(spec: Exercise, case: Evidence) -> Fault | None:
    """What is wrong with the messages of a case that ended."""
    borrowed = next((o.borrowed for o in case.outcomes if o.borrowed), "")
    if borrowed:
        by_hand = borrowed.startswith("tpcourse.wire")
        return Fault("borrowed", f"calls {borrowed}; {'only send and receive are allowed' if by_hand else WRITES_IT}")
    return first_fault(case, spec.budget(case.case, case.inputs)) if case.finished else None


def values_fault(case: Evidence, may_change: tuple[str, ...] = ()) -> str:
    """What is wrong with the values of a case, in a sentence; empty if nothing is."""
    if not case.finished:
        return _unfinished(case)
    for check in (_wrong_kind, _wrong_result):
        if text := check(case):
            return text
    for rank, outcome in enumerate(case.outcomes):
        for name in outcome.changed:
            if name not in may_change:
                return f"the result is right, but rank {rank} changed its input `{name}` (at {case.case})"
        for name in outcome.aliases:
            if name not in may_change:
                return f"the result shares memory with the input `{name}` (at {case.case}): return a tensor of its own"
    return ""


def _unfinished(case: Evidence) -> str:
    raised = [(rank, outcome) for rank, outcome in enumerate(case.outcomes) if outcome.error]
    first_hand = [found for found in raised if not (case.failure and SECONDARY.search(found[1].error))]
    if first_hand:
        rank, outcome = first_hand[0]
        error = textwrap.shorten(OBJECT.sub("", outcome.error), 300, placeholder=" ...")
        line = f" at {outcome.line}" if outcome.line else ""
        return f"rank {rank} of the group raised {error}{line} (at {case.case})"
    return f"at {case.case} it did not end; in ranks of the world: {case.failure}"


def _wrong_result(case: Evidence) -> str:
    found = [first_difference(o.result, e) for o, e in zip(case.outcomes, case.expected, strict=True)]
    wrong = [rank for rank, difference in enumerate(found) if difference]
    if not wrong:
        return ""
    worst = max(wrong, key=lambda rank: size_of(found[rank]))
    who = "every rank" if len(wrong) == case.p else f"rank {', '.join(map(str, wrong))} of the group"
    return f"the result is wrong on {who} (at {case.case}); rank {worst}: {found[worst]}"


def _wrong_kind(case: Evidence) -> str:
    for rank, outcome in enumerate(case.outcomes):
        for dtype, device in outcome.kinds:
            if dtype != "float64":
                return f"the result on rank {rank} is {dtype}, and the input is float64"
            if device != outcome.device:
                return f"the result on rank {rank} is on {device}, and the input is on {outcome.device}"
    return ""


def _wrong_values(spec: Exercise, case: Evidence, cases: list[Evidence]) -> Verdict:
    fault = fault_of(spec, case)
    text = values_fault(case, spec.may_change)
    right_at = sorted({c.p for c in cases if c.right and c.p != case.p})
    if right_at and case.finished and not case.right:
        text += f" - and right at {' and '.join(map(str, right_at))} ranks"
    second = Line("communication", NOT_JUDGED, NOT_JUDGED)
    if case.finished:
        second = Line("communication", *((FAILED, fault.text) if fault else (PASSED, spec.communication)))
    lines = [Line("values", FAILED, text), second]
    return _explained(spec, lines, _finding(spec, case, fault, cases))


def _wrong_messages(spec: Exercise, case: Evidence, fault: Fault, passed: Line, cases: list[Evidence]) -> Verdict:
    lines = [passed, Line("communication", FAILED, f"{fault.text} (at {case.case})")]
    return _explained(spec, lines, _finding(spec, case, fault, cases))


def _finding(spec: Exercise, case: Evidence, fault: Fault | None, cases: list[Evidence]) -> Finding:
    return Finding(case, fault, tuple(c for c in cases if c is not case), spec.may_change)


def _explained(spec: Exercise, lines: list[Line], finding: Finding) -> Verdict:
    misconception = likely(finding, spec.misconceptions)
    verdict = Verdict(spec.name, lines)
    if misconception:
        verdict.why, verdict.hint = misconception.sentence, misconception.hint
    return verdict
