"""From the events of torch's profiler to spans: which kernels communicate, and what they are called in a picture."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from tpcourse.timeline.span import COMMUNICATION, COMPUTE, Span

RANGE = "communication: "
"""What stands before the name of a range whose kernels communicate, whatever they are called."""
RANGES = (RANGE, "nccl:")
KERNELS = ("nccl", "peer copy", "memcpy ptop", "symmetric_memory", "barrier_kernel", "signal_kernel", "multimem")
"""What a kernel that communicates has in its name."""
SHORT = (
    (r"nccl\w*?Kernel_?(\w+?)(?:_RING|_TREE|_Sum|\(|_LL|_SIMPLE|$)", r"\1"),
    (r"memcpy ptop", "peer copy"),
    (r"memcpy \w+", "copy"),
    (r"memset", "fill"),
    (r"gemm|cutlass|nvjet|cublas|xmma", "product"),
    (r"barrier_kernel", "barrier"),
    (r"(\w+)_signal_kernel", r"\1 signal"),
    (r"flash|fmha|attention", "attention"),
)
"""Pattern -> what it is called in a picture; the first that fits counts."""


class Kernel(NamedTuple):
    """What a GPU ran from when to when, or a named range around what it ran; nanoseconds since 1970."""

    name: str
    stream: int
    begin_ns: int
    end_ns: int
    is_range: bool = False


def communication(name: str) -> AbstractContextManager[object]:
    """A range of the program, as `with communication("pull piece 1"):`. Kernels that it starts are communication.

    It costs nothing unless somebody profiles.
    """
    import torch

    is_seen = torch.autograd._profiler_enabled()
    return torch.profiler.record_function(RANGE + name) if is_seen else nullcontext()


def from_profiler(events: Iterable[Any], rank: int, origin_ns: int = 0) -> list[Span]:
    """The spans of one rank's GPU: NCCL's kernels, peer copies, and what our named ranges started, communicate.

    `events` are a profiler's, `prof.profiler.kineto_results.events()`, or `Kernel`s; times count from `origin_ns`,
    which must be the same on all ranks. Ranges are no spans; a kernel in a range on its stream has its name.
    """
    kernels = [event if isinstance(event, Kernel) else kernel for event in events if (kernel := _kernel(event))]
    ranges = [kernel for kernel in kernels if kernel.is_range and kernel.name.startswith(RANGES)]
    spans = []
    for kernel in sorted((k for k in kernels if not k.is_range), key=lambda k: k.begin_ns):
        around = next((r for r in ranges if _holds(r, kernel)), None)
        is_ours = around is not None and around.name.startswith(RANGE)
        talks = around is not None or any(part in kernel.name.lower() for part in KERNELS)
        name = around.name.removeprefix(RANGE) if around is not None and is_ours else short(kernel.name)
        times = ((time - origin_ns) / 1e9 for time in (kernel.begin_ns, kernel.end_ns))
        spans.append(Span(rank, COMMUNICATION if talks else COMPUTE, name, *times))
    return spans


def short(name: str) -> str:
    """What a kernel does in a word or two: product, AllGather, peer copy, or its own name without its types."""
    for pattern, text in SHORT:
        if match := re.search(pattern, name, re.IGNORECASE):
            return match.expand(text)
    bare = re.sub(r"<.*|\(.*", "", name.removeprefix("void ")).strip()
    return bare.rpartition("::")[2] or name


def _holds(around: Kernel, kernel: Kernel) -> bool:
    return around.stream == kernel.stream and around.begin_ns <= kernel.begin_ns and kernel.end_ns <= around.end_ns


def _kernel(event: Any) -> Kernel | None:
    """An event of the profiler, if it is one of a GPU."""
    if isinstance(event, Kernel):
        return event
    if str(event.device_type()).rpartition(".")[2] != "CUDA":
        return None
    is_range = bool(event.is_user_annotation()) or event.name().startswith(RANGES)
    return Kernel(event.name(), event.device_resource_id(), event.start_ns(), event.end_ns(), is_range)
