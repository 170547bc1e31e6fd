"""GPUs as their driver describes them, asked without loading CUDA: memory, mode, and the processes on them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NEEDED_MIB = 1536  # a CUDA context, NCCL's buffers and a lesson's tensors


@dataclass(frozen=True)
class Gpu:
    """One GPU: its number and identifier, its memory, whether it serves one process only, and who is on it."""

    index: str
    uuid: str
    total_mib: int
    used_mib: int
    is_exclusive: bool
    pids: tuple[int, ...] = ()

    @property
    def free_mib(self) -> int:
        return self.total_mib - self.used_mib

    def trouble(self) -> str | None:
        """Why a rank cannot start here, in a sentence; None if it can."""
        who = "Process" if len(self.pids) == 1 else "Processes"
        on_it = f" {who} on it: {', '.join(map(str, self.pids))}." if self.pids else ""
        if self.is_exclusive and self.pids:
            return f"GPU {self.index} is taken: it serves one process at a time.{on_it}"
        if self.free_mib < NEEDED_MIB:
            sizes = f"{self.free_mib / 1024:.1f} of {self.total_mib / 1024:.0f} GiB are free"
            return f"GPU {self.index} is full: {sizes}, a rank needs {NEEDED_MIB / 1024:.1f}.{on_it}"
        return None


def nvidia_smi(*args: str) -> str:
    """What nvidia-smi prints, or nothing where there is none or it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run([program, *args], capture_output=True, text=True, timeout=5, check=True)
    except (subprocess.SubprocessError, OSError):
        return ""
    return "\n".join(line for line in done.stdout.splitlines() if line.strip())


def all_gpus() -> list[Gpu]:
    """Every GPU of this machine, whether this process may use it or not."""
    pids: dict[str, list[int]] = {}
    for row in _rows("--query-compute-apps=gpu_uuid,pid"):
        if len(row) == 2 and row[1].isdigit():
            pids.setdefault(row[0], []).append(int(row[1]))
    rows = [row for row in _rows("--query-gpu=index,uuid,memory.total,memory.used,compute_mode") if len(row) == 5]
    return [
        Gpu(index, uuid, int(total), int(used), "exclusive" in mode.lower(), tuple(pids.get(uuid, ())))
        for index, uuid, total, used, mode in rows
        if total.isdigit() and used.isdigit()  # an instance of MIG has no such figures
    ]


def _rows(query: str) -> list[list[str]]:
    return [line.split(", ") for line in nvidia_smi(query, "--format=csv,noheader,nounits").splitlines()]


def named(gpus: Iterable[Gpu], names: Sequence[str]) -> list[Gpu]:
    """The GPUs that entries of CUDA_VISIBLE_DEVICES mean: numbers, or beginnings of identifiers."""
    found = [next((gpu for gpu in gpus if _is(gpu, name)), None) for name in names]
    return [gpu for gpu in found if gpu is not None]


def _is(gpu: Gpu, name: str) -> bool:
    return name == gpu.index if name.isdigit() else gpu.uuid.startswith(name)
