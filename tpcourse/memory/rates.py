"""From one small step to any model: bytes a parameter, and bytes a token of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpcourse.memory.formulas import RECOMPUTE, gpt_width, model_state_bytes, require_recompute, require_sizes

HEAD_WIDTH = 128
STATES = ("parameter", "gradient", "master", "moment")


@dataclass(frozen=True)
class Rates:
    """What a step holds per unit: `states` in bytes a parameter, by kind; the activations of one layer.

    In units of batch x tokens x width: `linear`, all but the scores, which selective recompute keeps; and
    `full`, which full recompute keeps. In units of heads x tokens² x batch: `scores`.

    Raises: ValueError for a negative number.
    """

    states: Mapping[str, float]
    linear: float = 34.0
    scores: float = 5.0
    full: float = 2.0

    def __post_init__(self) -> None:
        require_sizes(least=0, **self.states, linear=self.linear, scores=self.scores, full=self.full)

    @classmethod
    def formula(cls, *, master: bool = True) -> Rates:
        """The formulas' rates: 16 bytes a parameter, or 12 without the master copy; 34, 5 and 2."""
        return cls({kind: float(size) for kind, size in model_state_bytes(1, master=master).items()})

    @classmethod
    def measured(
        cls, held: Mapping[str, int], num_parameters: int, kept: Mapping[str, float], *, batch: int, tokens: int,
        width: int, heads: int,
    ) -> Rates:  # fmt: skip
        """Rates from counts: `held` of a model with its optimizer, `kept` of one layer for each recompute.

        Raises: ValueError for a size below 1, or a kind of recompute that was not counted.
        """
        require_sizes(num_parameters=num_parameters, batch=batch, tokens=tokens, width=width, heads=heads)
        missing = set(RECOMPUTE) - set(kept)
        if missing:
            raise ValueError(
                f"kept has no bytes for {', '.join(sorted(missing))}: count one layer for each recompute"
            )
        states = {kind: held[kind] / num_parameters for kind in STATES if kind in held}
        unit, scores = (
            batch * tokens * width,
            (kept["none"] - kept["selective"]) / (heads * tokens**2 * batch),
        )
        return cls(states, kept["selective"] / unit, scores, kept["full"] / unit)

    def model(
        self, num_parameters: float, layers: int, tokens: int, batch: int, recompute: str = "none"
    ) -> dict[str, float]:
        """Bytes by kind of a GPT of this size on one rank: states, and the activations of all its layers.

        P parameters in L layers give a width h = sqrt(P / 12L), in heads of 128.

        Raises: ValueError for a size below 1 or an unknown recompute.
        Trap: the embedding, the logits and the one layer that is being recomputed come on top.
        """
        require_sizes(num_parameters=num_parameters, layers=layers, tokens=tokens, batch=batch)
        require_recompute(recompute)
        width = gpt_width(num_parameters, layers)
        layer = (self.full if recompute == "full" else self.linear) * batch * tokens * width
        if recompute == "none":
            layer += self.scores * (width // HEAD_WIDTH) * tokens**2 * batch
        return {kind: rate * num_parameters for kind, rate in self.states.items()} | {
            "activation": layers * layer
        }
