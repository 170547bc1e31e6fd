"""The figures that `tpcourse bench NAME --record` wrote, for pictures that show them beside the learner's own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "recordings"


def recorded(name: str, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Machine -> figures of the recorded run of a benchmark; empty if none was recorded."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return {}
    content = json.loads(path.read_text("utf-8"))
    return {machine_name(content["machine"], content["figures"]): content["figures"]}


def recorded_on_gpus(
    name: str, recordings: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[str, Mapping[str, Any]] | None:
    """Machine and figures of the recorded run on GPUs, if there is one; `recordings` are those of `recorded(name)`."""
    found = recorded(name) if recordings is None else recordings
    return next((run for run in found.items() if run[1]["backend"] == "nccl"), None)


def none_on_gpus(name: str, num_gpus: int = 2) -> str:
    """What stands in the place of a picture if no run was recorded on GPUs."""
    return f"No run on GPUs is recorded: `tpcourse bench {name} --record` makes one on {num_gpus} GPUs."


def machine_name(machine: dict[str, Any], figures: dict[str, Any]) -> str:
    """2 x NVIDIA H200, NCCL 2.28.9; or 4 ranks on a CPU."""
    if figures.get("backend") == "nccl" and machine.get("cards"):
        return f"{figures['p']} x {machine['cards'][0]}, NCCL {machine.get('nccl')}"
    return f"{figures['p']} ranks on a CPU"
