"""Shows what the ranks printed, displayed and returned: in rank order, equal outputs once."""

from __future__ import annotations

import sys
from typing import Any

from tpcourse.watch.words import ranks_text

Item = tuple[str, Any]


def names(ranks: list[int], num_ranks: int) -> str:
    """`rank 2`, `ranks 0-2`, or `all ranks`: so that what all print alike reads the same with any number of ranks."""
    return "all ranks" if len(ranks) == num_ranks > 1 else ranks_text(ranks)


def grouped(by_rank: dict[int, Any]) -> list[tuple[list[int], Any]]:
    """Ranks with equal values together, in the order of the first rank of each."""
    groups: list[tuple[list[int], Any]] = []
    for rank in sorted(by_rank):
        for ranks, value in groups:
            if value == by_rank[rank]:
                ranks.append(rank)
                break
        else:
            groups.append(([rank], by_rank[rank]))
    return groups


def show(items_by_rank: dict[int, list[Item]], num_ranks: int) -> None:
    """Print and display the outputs of one cell."""
    shown = {rank: items for rank, items in items_by_rank.items() if items}
    for ranks, items in grouped(shown):
        for kind, data in items:
            _show_one(names(ranks, num_ranks), kind, data)


def _show_one(who: str, kind: str, data: Any) -> None:
    if kind in ("stdout", "stderr"):
        print(hanging(who, data), file=sys.stdout if kind == "stdout" else sys.stderr)
        return
    bundle, metadata = data
    if set(bundle) == {"text/plain"}:
        print(hanging(who, bundle["text/plain"]))
    else:
        from IPython.display import display

        print(f"{who}:")
        display(bundle, metadata=metadata, raw=True)


def hanging(who: str, text: str) -> str:
    """`rank 0: first line`, the next lines indented under it."""
    head = f"{who}: "
    lines = text.rstrip("\n").split("\n")
    return head + ("\n" + " " * len(head)).join(lines)


def failures(errors_by_rank: dict[int, dict[str, Any]], num_ranks: int) -> str:
    """One block for all errors: each different one once, with its ranks and the learner's lines."""
    blocks = []
    for ranks, error in grouped(errors_by_rank):
        lines = [f"{names(ranks, num_ranks)} raised {error['name']}: {error['message']}".rstrip(": ")]
        lines += [f"    {place}: {text}" for place, text in error["frames"]]
        if error["inside"]:
            lines.append(f"    raised in {error['inside']}")
        blocks.append("\n".join(lines))
    return "\n".join(blocks)
