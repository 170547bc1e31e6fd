"""Which form `auto` means: the one with the shortest predicted time.

A form hides communication only where there is a product to hide it under, and costs launches and smaller products. So
below some size, and where communication takes longer than what it could hide under, the plain way is the fastest.
"""

from __future__ import annotations

import socket
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.costs import Times, product_flops
from tpcourse.overlap.area import MOST_RANKS
from tpcourse.overlap.forms import How
from tpcourse.overlap.tokens import Tokens

FLOPS_PER_S = {torch.bfloat16: 740e12, torch.float16: 740e12, torch.float32: 45e12, torch.float64: 50e12}
"""What a product of the course's sizes reaches on an H100 or H200."""
COLLECTIVE_S, COLLECTIVE_BYTES_PER_S = 30e-6, 240e9
"""Start and speed of NCCL's gather and scatter-sum between two of them."""
COPY_S, COPY_BYTES_PER_S = 10e-6, 320e9
"""Start and speed of a copy from memory to memory."""
LAUNCH_S = {"serial": 0.0, "ring": 60e-6, "peer": 30e-6}
"""What a form costs whatever the size: its launches, streams and signals."""
SPLIT = 1.04
"""How much longer a product takes in parts, beside communication."""

_reaching: WeakKeyDictionary[dist.ProcessGroup, bool] = WeakKeyDictionary()  # asked once for each group


def chosen(kind: str, how: How, x: Tensor, weight: Tensor, tokens: Tokens) -> How:
    """What the caller asked for; for `auto`, the form predicted to be the fastest of those to be had.

    Traffic: on GPUs the first `auto` of a group asks all its ranks where they are (one gather of objects).
    """
    if len(tokens.sizes) == 1:
        return how._replace(form="serial")  # nobody to send to
    if how.form != "auto":
        return how
    if not x.is_cuda:
        return how._replace(form="serial")  # a CPU's cores carry the messages too: nothing is hidden
    forms = ["serial", "ring"] + ["peer"] * reach_each_other(tokens.tp, x.device)
    times = {form: predicted_s(form, *times_of(kind, form, x, weight, tokens), len(tokens.sizes)) for form in forms}
    return how._replace(form=min(times, key=times.__getitem__))


def times_of(kind: str, form: str, x: Tensor, weight: Tensor, tokens: Tokens) -> Times:
    """Seconds of the product on its own, and of its communication as this form does it."""
    p, (out, into) = len(tokens.sizes), weight.shape
    num_rows = max(1, x.shape[: tokens.dim].numel() * sum(tokens.num_rows(x)))
    num_bytes = num_rows * (into if kind == "gather" else out) * x.itemsize * (p - 1) / p
    start, speed = (COPY_S, COPY_BYTES_PER_S) if form == "peer" else (COLLECTIVE_S, COLLECTIVE_BYTES_PER_S)
    flops_per_s = FLOPS_PER_S.get(x.dtype, FLOPS_PER_S[torch.float32])
    return Times(product_flops(num_rows, max(1, into), max(1, out)) / flops_per_s, start + num_bytes / speed)


def predicted_s(form: str, product_s: float, communication_s: float, p: int) -> float:
    """One after the other; or the product in parts, and what of the communication outlasts the part that hides it.

    p - 1 of p parts have communication beside them.
    """
    if form == "serial":
        return product_s + communication_s
    exposed_s = max(0.0, communication_s - product_s * (p - 1) / p)
    return LAUNCH_S[form] + SPLIT * product_s + exposed_s


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
