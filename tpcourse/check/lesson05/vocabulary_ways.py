"""The mistakes of `vocabulary_loss`, played rank by rank. Torch is imported late."""

from __future__ import annotations

from typing import Any

from tpcourse.check.evidence import Evidence


def played(*mistakes: str) -> Any:
    """The loss with some mistakes: own max, sum, targets or softmax; logs added; a clamped, wrapped or first column for
    other targets; a rank's end too, or its start or end left out; sums both ways, or in backward only (swapped).
    """

    def way(evidence: Evidence) -> list[Any]:
        from tpcourse.check.lesson05 import devices

        add = devices.sum_sum if "both ways" in mistakes else devices.sum_copy
        add = devices.copy_sum if "swapped" in mistakes else add
        widths = [given["logits"].array.shape[1] for given in evidence.inputs]
        starts = [sum(widths[:rank]) for rank in range(evidence.p)]

        def forward(ranks: list[Any]) -> list[Any]:
            shifted = _shifted([r["logits"] for r in ranks], mistakes)
            sums = [s.exp().sum(-1) for s in shifted]
            logs = add([own.log() for own in sums]) if "logs added" in mistakes else None
            sums = sums if "own sum" in mistakes else add(sums)
            logs = logs or [total.log() for total in sums]
            picked = [_picked(s, r["targets"], start, mistakes) for s, r, start in zip(shifted, ranks, starts)]
            picked = picked if "own targets" in mistakes else add(picked)
            return [(log - own).mean() for log, own in zip(logs, picked, strict=True)]

        return devices.on_ranks(evidence.inputs, forward, summed=())

    return way


def _shifted(logits: list[Any], mistakes: tuple[str, ...]) -> list[Any]:
    """Logits less the largest of each token, of all ranks' or of the rank's own; or a softmax of the rank's own."""
    import torch

    if "own softmax" in mistakes:
        return [own.log_softmax(-1) for own in logits]
    tops = [own.detach().amax(-1) for own in logits]
    top = torch.stack(tops).amax(0)
    return [own - (mine if "own max" in mistakes else top)[:, None] for own, mine in zip(logits, tops, strict=True)]


def _picked(shifted: Any, targets: Any, start: int, mistakes: tuple[str, ...]) -> Any:
    width = shifted.shape[1]
    index = targets - start
    mine = (index >= 0) & (index < width)
    if "clamped" in mistakes or "first column" in mistakes:
        index = index.clamp(0, width - 1) if "clamped" in mistakes else index.where(mine, 0 * index)
        return shifted.gather(1, index[:, None])[:, 0]
    if "wrapped" in mistakes:
        return shifted.gather(1, (index % width)[:, None])[:, 0]
    low, high = int("start left out" in mistakes), width + ("end too" in mistakes) - ("end left out" in mistakes)
    mine = (index >= low) & (index < high)
    return shifted.gather(1, index.clamp(0, width - 1)[:, None])[:, 0] * mine
