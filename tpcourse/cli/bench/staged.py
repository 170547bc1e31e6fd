"""`DataParallel` with its communication late, or left out: what overlap is compared with."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from tpcourse.data import Bucket, DataParallel


class Staged(DataParallel):
    """`stage` is "overlap" (as it is), "serial" (all buckets leave behind backward) or "silent" (none leaves).

    `waits` has a begin and an end for each wait behind backward: CUDA events, or seconds on the CPU.
    """

    stage = "overlap"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits: list[tuple[Any, Any]] = []

    def _wait(self) -> None:
        begin = self._now()
        super()._wait()
        self.waits.append((begin, self._now()))

    def _now(self) -> Any:
        if not self.weights[0].is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def waited_ms(self) -> list[float]:
        """How long the compute stream stood still behind each backward since the last question."""
        if self.weights[0].is_cuda:
            torch.cuda.synchronize()
            found = [begin.elapsed_time(end) for begin, end in self.waits]
        else:
            found = [1e3 * (end - begin) for begin, end in self.waits]
        self.waits.clear()
        return found

    def _begin_backward(self) -> None:
        super()._begin_backward()
        if self.stage == "serial":
            self._missing = [number + 1 for number in self._missing]  # no bucket is ever full

    def _leave(self, bucket: Bucket) -> dist.Work:
        if self.stage == "silent":
            self.gradients.fill(bucket)
            return Done()
        return super()._leave(bucket)

    def send(self, bucket: Bucket) -> dist.Work:
        """The all-reduce of a bucket, as it is."""
        return self._average(self.gradients.piece(bucket))


class Done(dist.Work):
    """A call that was never made."""

    def wait(self, timeout: object = None) -> bool:
        return True
