"""Which form `auto` means: the one with the shortest predicted time.

A form hides communication only where there is a product to hide it under, and costs launches and smaller products. So
below some size, and where communication takes longer than what it could hide under, the plain way is the fastest. A
GPU also waits for the CPU that launches its work, and forms that hide have more to launch: only a captured graph does
not pay for that. The constants were fitted to `tpcourse bench overlap`, `profile` and `scale` on two and four H200;
other machines have others.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.costs import Times, product_flops
from tpcourse.overlap.area import MOST_RANKS
from tpcourse.overlap.forms import How
from tpcourse.overlap.tokens import Tokens

FLOPS_PER_S = {torch.bfloat16: 700e12, torch.float16: 700e12, torch.float32: 45e12, torch.float64: 50e12}
"""What a product of the course's sizes reaches on an H200."""
START_S = {"serial": 35e-6, "ring": 35e-6, "peer": 12e-6}
"""What the first byte takes: of NCCL's collectives, of its messages, of a copy from memory to memory."""
BYTES_PER_S = {"serial": (245e9, 290e9), "ring": (130e9, 85e9), "peer": (320e9, 320e9)}
"""Their speed between two ranks, and among more (measured with four); NCCL's messages share the GPU with a product."""
ADDED_BYTES_PER_S = 1e12
"""Speed of adding one array to another."""
LAUNCH_S = {"serial": 0.0, "ring": 60e-6, "peer": 20e-6}
"""What a form costs whatever the size: its launches and streams."""
CPU_S = {"serial": (0.25e-3, 0.0), "ring": (0.35e-3, 0.25e-3), "peer": (0.33e-3, 0.33e-3)}
"""What the CPU is busy for with a form's launches, and with those for each other rank, whatever the size. Measured with
two and four ranks, in one sequence; a sequence more is a copy more for each rank, in the backward of `peer`.
"""
PART_S = 6e-6
"""What each part of a product costs: its launch, its signal, and the multiprocessors that are idle as it ends."""
SPLIT = 1.01
"""How much longer products take beside communication."""
Choice = tuple[str, int | None]
CHOICES: dict[str, tuple[Choice, ...]] = {
    "gather": (("serial", None), ("ring", None), ("peer", None), ("peer", 2)),
    "scatter": (("serial", None), ("peer", None), ("peer", 1), ("peer", 4)),
}
"""Forms and pieces to choose from; None is the form's usual number, 1 of what arrives and 2 of what leaves. A ring of
sums is none of them: in no recording it saved more than 5 % of the time, and at most shapes it lost some.
"""

_reaching: WeakKeyDictionary[dist.ProcessGroup, bool] = WeakKeyDictionary()  # asked once for each group


def chosen(kind: str, how: How, x: Tensor, weight: Tensor, tokens: Tokens) -> How:
    """What the caller asked for; for `auto`, the form and pieces predicted to be the fastest of those to be had.

    Traffic: on GPUs the first `auto` of a group asks all its ranks where they are (one gather of objects).
    """
    if len(tokens.sizes) == 1:
        return how._replace(form="serial")  # nobody to send to
    if how.form != "auto":
        return how
    if not x.is_cuda:
        return how._replace(form="serial")  # a CPU's cores carry the messages too: nothing is hidden
    num_rows = x.shape[: tokens.dim].numel() * sum(tokens.num_rows(x))
    size = Size(kind, num_rows, weight.shape[1], weight.shape[0], x.dtype, len(tokens.sizes))
    is_captured = torch.cuda.is_current_stream_capturing()
    form, pieces = fastest(size, reach_each_other(tokens.tp, x.device), is_captured)
    return how._replace(form=form, pieces=how.pieces or pieces)


class Size(NamedTuple):
    """A "gather" or "scatter" of `rows` tokens of all p ranks, and a product from `into` to `out` columns."""

    kind: str
    rows: int
    into: int
    out: int
    dtype: torch.dtype
    p: int


@lru_cache(maxsize=1024)
def fastest(size: Size, has_peers: bool, is_captured: bool = False) -> Choice:
    """The choice with the shortest predicted time: the GPU's, or, outside a captured graph, the CPU's if longer."""
    choices = [choice for choice in CHOICES[size.kind] if has_peers or choice[0] != "peer"]

    def seconds(choice: Choice) -> tuple[float, float]:
        on_gpu_s, (always_s, each_s) = predicted_s(size, *choice), CPU_S[choice[0]]
        on_cpu_s = 0.0 if is_captured else always_s + (size.p - 1) * each_s
        return max(on_gpu_s, on_cpu_s), on_gpu_s

    return min(choices, key=seconds)


def predicted_s(size: Size, form: str, pieces: int | None) -> float:
    """Seconds of a form: one after the other, or parts of the product each behind what it needs."""
    times = times_of(size, form)
    if form == "serial":
        return sum(times)
    num_pieces = pieces or (1 if size.kind == "gather" else 2)
    each_s = SPLIT * times.product_s / (size.p * num_pieces) + PART_S
    way_s = times.communication_s / ((size.p - 1) * num_pieces)
    if size.kind == "gather":
        return LAUNCH_S[form] + _arrived_s(each_s, way_s, size.p, num_pieces)
    added_s = size.rows / size.p * size.out * size.dtype.itemsize / ADDED_BYTES_PER_S
    return LAUNCH_S[form] + _left_s(each_s, way_s, size.p, num_pieces, added_s)


def times_of(size: Size, form: str) -> Times:
    """Seconds of the product on its own, and of its communication as this form does it."""
    rows, into, out = (max(1, n) for n in (size.rows, size.into, size.out))
    num_bytes = rows * (into if size.kind == "gather" else out) * size.dtype.itemsize * (size.p - 1) / size.p
    between_two, among_more = BYTES_PER_S[form]
    speed = between_two if size.p == 2 else among_more
    flops_per_s = FLOPS_PER_S.get(size.dtype, FLOPS_PER_S[torch.float32])
    return Times(product_flops(rows, into, out) / flops_per_s, START_S[form] + num_bytes / speed)


def _arrived_s(each_s: float, way_s: float, p: int, num_pieces: int) -> float:
    """This rank's rows first; then each piece of the others', once it has come."""
    now = num_pieces * each_s
    for piece in range((p - 1) * num_pieces):
        now = max(now, (piece + 1) * way_s) + each_s
    return now


def _left_s(each_s: float, way_s: float, p: int, num_pieces: int, added_s: float) -> float:
    """A step's pieces one by one, each onto what has come of the last step's; a single piece is added behind."""
    left = [(piece + 1) * each_s for piece in range(num_pieces)]
    now = left[-1]
    for _ in range(p - 1):
        come = 0.0
        for piece in range(num_pieces):
            come = max(come, left[piece]) + way_s
            now = max(now, come) + each_s if num_pieces > 1 else max(now + each_s, come) + added_s
            left[piece] = now
    return now


def reach_each_other(tp: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether the group's GPUs can all read and write each other's memory; the same answer on every rank."""
    if tp not in _reaching:
        if torch.cuda.is_current_stream_capturing():
            return False  # nobody can be asked now
        others = [at for at in range(torch.cuda.device_count()) if at != device.index]
        mine = all(torch.cuda.can_device_access_peer(device.index, at) for at in others) and bool(others)
        answers: list[tuple[str, bool]] = [("", False)] * dist.get_world_size(tp)
        dist.all_gather_object(answers, (_host(), mine), group=tp)
        is_near = len({host for host, _ in answers}) == 1 and len(answers) <= MOST_RANKS
        _reaching[tp] = is_near and all(can for _, can in answers)
    return _reaching[tp]


def _host() -> str:
    """A name that no other machine has: names like localhost are many machines'."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text() if boot.exists() else ''}"
