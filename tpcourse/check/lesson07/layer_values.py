"""Wrong gradients that both exercises on layers may give, each played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.evidence import Evidence
from tpcourse.check.lesson07 import common, layers
from tpcourse.check.misconceptions import Misconception, by_playing_all


def _with(change: Callable[[Evidence, list[list[np.ndarray]]], list[np.ndarray]]) -> Callable[[Evidence], list[Any]]:
    def way(evidence: Evidence) -> list[Any]:
        ys, gradients = layers.through(evidence.inputs)
        return layers.named(ys, change(evidence, gradients))

    return way


def _own_pieces(evidence: Evidence) -> list[Any]:
    ys, gradients = layers.through(evidence.inputs)
    return [layers.named(ys, own)[rank] for rank, own in enumerate(gradients)]


VALUES = (
    common.by_playing(
        "sum for mean",
        "The gradients are p times too large: a reduce-scatter adds, and ranks' losses are averaged.",
        "Divide by p, the array before or the piece after.",
        _with(lambda evidence, gradients: [np.sum(own, axis=0) for own in zip(*gradients, strict=True)]),
    ),
    common.by_playing(
        "own gradient",
        "Each rank returns its piece of its own gradient: the other ranks' examples are not in it.",
        "Every rank has a gradient for all weights of a layer: one reduce-scatter brings each to its owner.",
        _own_pieces,
        lambda evidence: [[y, *(piece / evidence.p for piece in pieces)] for y, *pieces in _own_pieces(evidence)],
    ),
    by_playing_all(
        "divided twice",
        "The gradients are p times too small: on their way they are divided by p twice.",
        "One division makes the mean: of the sum or of each rank's share, not of both.",
        _with(lambda evidence, gradients: [np.mean(own, axis=0) / evidence.p for own in zip(*gradients, strict=True)]),
    ),
    common.by_playing(
        "last first",
        "The gradients are in the order in which backward makes them: the last layer's comes first.",
        "Backward runs from the last layer to layer 0, and the list that is asked for begins with layer 0.",
        lambda evidence: [[y, *reversed(pieces)] for y, *pieces in evidence.expected],
    ),
)
ALL_REDUCE: Misconception = common.over_with(
    "all-reduce kept",
    "all_reduce",
    "A layer's gradient is all-reduced: every rank gets the whole average, pays twice the bytes for it, and keeps 1/p.",
    "`reduce_scatter(flat, group=dp)` of `tpcourse.wire`.",
)
