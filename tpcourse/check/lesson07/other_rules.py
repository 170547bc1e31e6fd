"""What ranks return that step with another optimizer than AdamW, played on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.evidence import Evidence
from tpcourse.check.lesson07 import common
from tpcourse.check.lesson07.plain import Adam, Options, least_squares

Rule = Callable[[Adam, np.ndarray, np.ndarray, Options], np.ndarray]
HINT = "The task names the optimizer: AdamW, with all options that are given."


def _steps_with(rule: Rule) -> Callable[[Evidence], list[Any]]:
    """All steps by one rule, which gets the moments, the weights, the mean gradient and the options."""

    def way(evidence: Evidence) -> list[Any]:
        given = evidence.inputs[0]
        weights, adam = given["weights"]["array"], Adam.new(evidence.case.sizes["P"])
        for _ in range(given["steps"]):
            own = [e["gradient"] for e in evidence.inputs]
            mean = np.mean([least_squares(weights, g["rows"], g["targets"]) for g in own], axis=0)
            weights = rule(adam, weights, mean, given["options"])
        return [weights] * evidence.p

    return way


def _adam(adam: Adam, weights: np.ndarray, gradient: np.ndarray, options: Options) -> np.ndarray:
    return adam.step(weights, gradient + options["weight_decay"] * weights, {**options, "weight_decay": 0.0})


def _sgd(adam: Adam, weights: np.ndarray, gradient: np.ndarray, options: Options) -> np.ndarray:
    return weights - options["lr"] * gradient


def _sgd_with_decay(adam: Adam, weights: np.ndarray, gradient: np.ndarray, options: Options) -> np.ndarray:
    return weights - options["lr"] * (gradient + options["weight_decay"] * weights)


OTHER_RULES = (
    common.by_playing(
        "Adam",
        "The step is Adam's: the weight decay is added to the gradient, and so gets into the moments. AdamW takes it "
        "from the weights.",
        HINT,
        _steps_with(_adam),
    ),
    common.by_playing(
        "plain descent",
        "The step is plain gradient descent: it has no moments, and so nothing that stage 1 could share out.",
        HINT,
        _steps_with(_sgd),
        _steps_with(_sgd_with_decay),
    ),
)
