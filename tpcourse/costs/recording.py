"""The recorded run of the collectives, if there is one: real figures for a reader who has no GPUs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpcourse.costs.links import Link
from tpcourse.costs.measured import Measurement

FOLDER = Path(__file__).parents[1] / "recordings"


@dataclass(frozen=True)
class Recording:
    """What `tpcourse bench collectives --record` wrote: fitted sizes, sizes left out of the fit, and the machine."""

    machine: str
    measured: tuple[Measurement, ...]
    unseen: tuple[Measurement, ...]


def recorded(folder: Path = FOLDER) -> Recording | None:
    """The recorded run, or None where none was recorded."""
    if (content := _content("collectives", folder)) is None:
        return None
    figures = content["figures"]
    points = ([Measurement(**point) for point in figures[name]] for name in ("measured", "unseen"))
    measured, unseen = (tuple(sorted(part, key=lambda m: (m.op, m.num_bytes))) for part in points)
    return Recording(_name(content["machine"], figures), measured, unseen)


def recorded_link(folder: Path = FOLDER) -> dict[str, Any]:
    """What `tpcourse bench link --record` wrote of each shaped cable: alpha, bytes a second, steps; or nothing."""
    content = _content("link", folder)
    return content["figures"]["links"] if content else {}


def recorded_links(folder: Path = FOLDER) -> dict[str, Link]:
    """The shaped cables as links, by the names of their rates; and NVLink, where collectives were recorded over it."""
    source = "tpcourse bench link: all-reduces of gloo over TCP between two hosts, fitted as a ring's"
    found = {
        name: Link(name, one["alpha_s"], one["bytes_per_s"], source)
        for name, one in recorded_link(folder).items()
    }
    content = _content("collectives", folder) or {"machine": {}}
    if any(link.startswith("NV") for link in content["machine"].get("links", ())):
        fit, machine = content["figures"]["fits"]["all_reduce"], _name(content["machine"], content["figures"])
        source = f"tpcourse bench collectives: all-reduces on {machine}, fitted as a ring's"
        found["NVLink"] = Link("NVLink", fit["alpha_s"], 1 / fit["beta_s_per_byte"], source)
    return found


def _content(name: str, folder: Path) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _name(machine: dict[str, Any], figures: dict[str, Any]) -> str:
    """2 x NVIDIA H200, NCCL 2.28.9; or 4 ranks on a CPU, gloo."""
    if figures["backend"] == "nccl" and machine.get("cards"):
        return f"{figures['p']} x {machine['cards'][0]}, NCCL {machine.get('nccl')}"
    return f"{figures['p']} ranks on a CPU, {figures['backend']}"
