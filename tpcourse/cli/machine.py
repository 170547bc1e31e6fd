"""What this machine is: processor, memory, cards and their links, versions. For doctor and for recordings."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tpcourse.ranks.nvidia import nvidia_smi


@dataclass(frozen=True)
class Card:
    """A GPU as its driver describes it."""

    name: str
    memory_mib: int
    driver: str


def num_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def memory_bytes() -> tuple[int, int]:
    """Bytes of memory free and in all, the container's limit counted."""
    import psutil

    memory = psutil.virtual_memory()
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    total = min(memory.total, int(text)) if text.isdigit() else memory.total
    return min(memory.available, total), total


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def cards() -> list[Card]:
    """The NVIDIA GPUs that the driver shows, asked without loading CUDA."""
    query = "--query-gpu=name,memory.total,driver_version"
    rows = [line.split(", ") for line in nvidia_smi(query, "--format=csv,noheader,nounits").splitlines()]
    return [Card(row[0], int(row[1]) if row[1].isdigit() else 0, row[2]) for row in rows if len(row) == 3]


def links() -> list[str]:
    """How GPU 0 reaches each other GPU, in nvidia-smi's words: NV18, PIX, SYS, ..."""
    rows = [line.split() for line in nvidia_smi("topo", "-m").splitlines()]
    first = next((row for row in rows if row[0] == "GPU0" and "X" in row[:2]), [])
    return first[2 : 1 + len(cards())]


def version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def provenance() -> dict[str, object]:
    """What a recorded figure needs beside it: cards, links, processor, versions."""
    found = cards()
    return {
        "cards": [card.name for card in found],
        "links": links() if found else [],
        "driver": found[0].driver if found else None,
        "nccl": _nccl() if found else None,
        "processor": processor(),
        "cores": num_cores(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "ipyparallel", "ipykernel")},
    }


def _nccl() -> str | None:
    import torch

    return ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
