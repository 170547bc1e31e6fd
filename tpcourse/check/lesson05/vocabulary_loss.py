"""Exercise `vocabulary_loss(logits, targets, V, tp)`: cross-entropy of logits that no rank has whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import Named
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05 import common
from tpcourse.check.lesson05.given import Inputs, arguments, cut, whole
from tpcourse.check.lesson05.vocabulary_ways import played
from tpcourse.check.misconceptions import Finding, Misconception, by_fault
from tpcourse.check.report import FAILED, PASSED, Line
from tpcourse.check.spec import Exercise, nonzero, one_group
from tpcourse.dims import split_sizes

HELD = "bytes held"
moderate = common.cases(N=(5, 4, 6), V=(53, 70, 91), offset=(900, 0, 0))


def cases(world_size: int) -> list[Case]:
    """Logits of one size in a case; then, in the smallest group, a size for each token, and on one rank only."""
    return [*moderate(world_size), one_group(2, world_size, axis="tp", edge=True, N=6, V=57, offset=900)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Logits cut by columns, near the offset; the first column of every rank is a target, and the last one of one.

    At the edge a token's logits are near 900, 0 or -900 on one rank, and 900 below that on the other.
    """
    N, V, offset = case.sizes.values()
    p = case.p
    logits = 2 * nonzero(generator, N, V) + offset
    if case.edge:
        logits += _spread(N, V, offset)
    starts = np.cumsum([0, *(piece.array.shape[1] for piece in cut(logits, p, 1))])
    targets = [*starts[:-1], generator.choice(starts[1:]) - 1]
    targets += [generator.integers(V) for _ in range(N - p - 1)]
    return arguments(
        logits=cut(logits, p, 1),
        targets=whole(np.array(targets), p, leaf=False),
        V=[V] * p,
        dy=whole(np.array(generator.uniform(0.5, 1.5)), p, leaf=False),
    )


def _spread(N: int, V: int, offset: int) -> np.ndarray:
    """What the logits of six tokens, or more, are shifted by. Shapes: [N, V]."""
    tokens, columns = np.arange(N)[:, None], np.arange(V)[None]
    largest = (columns >= split_sizes(V, 2)[0]) == (tokens % 2 == 1)
    return -offset * (tokens % 3) - np.where(largest, 0, offset)


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """Torch's cross-entropy of all logits."""
    from torch.nn.functional import cross_entropy

    from tpcourse.check.lesson05.devices import on_one_device

    found = on_one_device(inputs, lambda logits, targets, V: cross_entropy(logits, targets), {"logits": 1})
    return [Named({"loss": loss, "dlogits": dlogits}) for loss, dlogits in found]


def budget(case: Case, inputs: Inputs) -> Budget:
    """Three numbers for each token: the maximum, the sum of exponentials, the target's logit."""
    N = case.sizes["N"]
    return common.rules(tp=common.Sums(3, 3 * N, forward=3 * N, least=2 * N))


def held(cases: list[Evidence]) -> Line:
    """What autograd keeps of a forward beside the logits: two tensors like them, and a few numbers for each token."""
    for case in reversed(cases):
        for rank, outcome in enumerate(case.outcomes):
            own, most = case.inputs[rank]["logits"].array.nbytes, 2 * case.inputs[rank]["logits"].array.nbytes
            if outcome.facts["held"] > most + 8 * 8 * case.case.sizes["N"]:
                text = f"rank {rank} keeps {outcome.facts['held']} bytes for backward beside its logits' {own}; "
                return Line(HELD, FAILED, f"{text}the budget is {most} (at {case.case})")
    return Line(HELD, PASSED, "for backward at most two tensors like the rank's logits are kept beside them")


def _overflows(finding: Finding, edge: bool = False) -> bool:
    """Whether a loss is infinite in a case where all logits are of one size, or at the edge."""
    every = [e for e in (finding.evidence, *finding.others) if e.finished and e.case.edge == edge]
    losses = [output[0] for evidence in every for output in evidence.outputs if isinstance(output, list) and output]
    return any(isinstance(loss, np.ndarray) and not np.isfinite(loss).all() for loss in losses)


def _infinite_with(is_it: Callable[[Any], bool]) -> Callable[[Finding], bool]:
    """Whether the loss is infinite at the edge only, and a call is such a one."""

    def shows(finding: Finding) -> bool:
        events = [event for outcome in finding.evidence.outcomes for event in outcome.events]
        return _overflows(finding, edge=True) and any(map(is_it, events))

    return shows


def _infinite_at_the_edge(finding: Finding) -> bool:
    """Whether the loss is infinite at the edge, and right everywhere else."""
    cases = (finding.evidence, *finding.others)
    return _overflows(finding, edge=True) and all(case.right for case in cases if not case.case.edge)


def _column_of_the_next(finding: Finding) -> bool:
    """Whether the column just behind a rank's last one was asked for."""
    asked = re.search(r"index (\d+) is out of bounds for dimension 1 with size (\d+)", finding.error)
    return asked is not None and asked[1] == asked[2]


OFF_BY_ONE = common.plays(played("end too"), played("start left out"), played("end left out"))
EXERCISE = Exercise(
    name="vocabulary_loss",
    values="the loss is that of the whole logits on every rank, and dlogits has this rank's columns of its gradient",
    communication="all_reduce only: three numbers for each token, whatever the vocabulary; none in backward",
    cases=cases,
    free=("N", "V"),
    make=make,
    expected=expected,
    budget=budget,
    third=held,
    probe="lesson05.watched",
    misconceptions=(
        *common.COMMON,
        common.by_playing(
            "local softmax",
            "Each rank takes the softmax of its own columns: probabilities add up to 1 on every rank, so to p in all.",
            "The sum of exponentials runs over the whole vocabulary: add it up over `tp` before the logarithm.",
            played("own sum"),
            played("own sum", "own max"),
            played("own sum", "own softmax"),
            played("own sum", "own targets"),
            played("own sum", "own targets", "own max"),
        ),
        common.by_playing(
            "own maximum",
            "Each rank takes off its own maximum, so the exponentials that are added up have different scales.",
            "`dist.all_reduce(top, op=dist.ReduceOp.MAX, group=tp)`, and take off that one everywhere.",
            played("own max"),
        ),
        common.by_playing(
            "logarithms added",
            "Each rank takes the logarithm of its own sum, and logarithms are added up: the log of a sum is another "
            "number than the sum of the logs.",
            "Add up the exponentials over `tp`, and take one logarithm behind that.",
            played("logs added"),
        ),
        Misconception(
            "boundary",
            lambda f: OFF_BY_ONE(f) or _column_of_the_next(f),
            "A target at the boundary of two ranks' columns counts on both of them, or on none.",
            "`split_range` gives the first column of this rank and the first one of the next: `start <= target < end`.",
        ),
        common.by_playing(
            "targets of others",
            "A target outside this rank's columns is counted with a column that is not its own: p logits are added up "
            "where one is meant.",
            "Exactly one rank has a target's column. The others put in 0: multiply by `mine`.",
            played("clamped"),
            played("first column"),
            played("wrapped"),
        ),
        common.by_playing(
            "summed both ways",
            "The loss is right, and dlogits is p times too large: backward adds up a gradient that is equal on all "
            "ranks.",
            "Sum forward, copy backward: `sum_copy`.",
            played("both ways"),
        ),
        common.by_playing(
            "pair swapped",
            "Forward adds up nothing, so each rank has the loss of its own columns; backward adds up instead.",
            "Partial sums become one replicated tensor: of the two pairs, take the one that sums forward.",
            played("swapped"),
        ),
        Misconception(
            "overflow",
            _overflows,
            "exp of a logit near 900 is infinite: the maximum was not taken off.",
            "softmax does not change when all logits of a token are shifted: subtract the largest one of all ranks.",
        ),
        Misconception(
            "one maximum for all tokens",
            _infinite_with(lambda event: event.numel == 1),
            "One maximum is taken off for all tokens: where it lies 900 above a token's own, that token's exponentials "
            "are all 0, and so is their sum.",
            "Each token has a softmax of its own, and a maximum of its own: `logits.detach().amax(-1)`, [N].",
        ),
        Misconception(
            "not the largest",
            _infinite_with(lambda event: event.reduction not in (None, "sum", "max")),
            "The ranks' maxima are combined, and what comes out is not the largest of them: exp is infinite for a "
            "token whose large logits are all on one rank.",
            "`dist.all_reduce(top, op=dist.ReduceOp.MAX, group=tp)`.",
        ),
        Misconception(
            "infinite at the edge",
            _infinite_at_the_edge,
            "The loss is infinite where a token's large logits are all on one rank: what is taken off is not the "
            "largest one of all ranks, or the log is taken of a probability that has become 0.",
            "log of the sum of exponentials, less (target's logit - m): no probability is needed, and m is the largest "
            "logit of that token on all ranks.",
        ),
        common.by_call(
            "gathered",
            common.gathers,
            "Logits are gathered: every rank holds [N, V], the largest tensor of the model, and that was not to be.",
            "Three numbers for each token are enough: maximum, sum of exponentials, the target's logit.",
        ),
        by_fault(
            "too many bytes",
            "bytes",
            "What travels grows with the vocabulary: [N, V] in disguise.",
            "Add up numbers for each token, [N], not for each column.",
        ),
        Misconception(
            "holds a table",
            lambda f: f.fault_kind == HELD and any(o.facts.get("table") for o in f.evidence.outcomes),
            "Values and messages are right, and memory is not: a table of zeros and ones for the targets is as large "
            "as the logits, or p times as large.",
            "Pick one number of each row by its index: `logits.gather(1, index[:, None])`.",
        ),
        by_fault(
            "holds copies",
            HELD,
            "Values and messages are right, and memory is not: every step over all columns that backward has to know "
            "keeps its tensor, as large as the logits.",
            "One exp of the shifted logits, and its sum: what else works on [N, V/p], and what could work on [N]?",
        ),
        *common.LAST,
    ),
)
