"""One rank: its groups, its worker, and the cell that it runs. All of it lives in an ipyparallel engine."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tpcourse import ledger
from tpcourse.engine.capture import Capture, abandon_output, capturing, output_of
from tpcourse.engine.cells import Cells
from tpcourse.engine.failure import describe
from tpcourse.engine.groups import Groups
from tpcourse.engine.worker import Job, Worker


class Rank:
    """What a rank is between two cells and within one."""

    def __init__(
        self,
        shell: Any,
        rank: int,
        world_size: int,
        backend: str,
        device_index: int,
        board: str | None,
        ranks_here: int,
    ) -> None:
        self.shell, self.rank, self.world_size = shell, rank, world_size
        self.device = torch.device("cuda", device_index) if backend == "nccl" else torch.device("cpu")
        self.usual = output_of(shell)
        self.groups = Groups(backend, self.device)
        self.worker = Worker()
        self.job: Job | None = None
        self.cells = Cells()
        self.mine: dict[str, Any] = {}
        if backend == "nccl":
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks_here))
        ledger.install(board=board)

    def join(self, store: Any, plan: list, generation: int) -> None:
        """Join a world on `store`, make the sub-groups of `plan`, and give the learner the names of every rank."""
        world = self.groups.join(dist.PrefixStore(str(generation), store), self.rank, self.world_size)
        self.groups.make_again(plan, self.shell.user_ns)
        names = {"rank": self.rank, "world_size": self.world_size, "device": self.device}
        self.shell.user_ns.update(names, world=world, torch=torch, dist=dist)
        ledger.reset()
        if self.groups.backend == "nccl":
            dist.barrier(device_ids=[self.device.index])  # the first call makes the communicator
            torch.cuda.synchronize()
            ledger.reset()

    def leave(self) -> None:
        """Leave the running cell behind, if any, and every group."""
        if self.job and not self.job.done.is_set():
            self.worker.leave(self.job)
            abandon_output(self.shell, self.usual)
            self.worker, self.job = Worker(), None
        self.groups.leave()

    def start(self, run: Callable[[Capture], Any]) -> Job:
        """Run a job on the worker."""
        ledger.reset_fingerprints()
        self.job = Job(run, self._begin)
        self.worker.submit(self.job)
        return self.job

    def _begin(self) -> None:
        """On the worker, before a job: what torch keeps per thread."""
        ledger.set_main_thread(self.worker.thread.ident)
        torch.set_grad_enabled(True)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def run_cell(self, source: str, number: int, capture: Capture) -> None:
        """Run a cell as IPython would, raising what it raised."""
        quiet = source.rstrip().endswith(";")
        transformed = self.shell.transform_cell(source)
        self.cells.begin(self.shell.compile.get_code_name(source, transformed, number), number)
        with capturing(self.shell, capture, self.usual, quiet), _no_traceback(self.shell):
            result = self.shell.run_cell(source, store_history=False)
            error = result.error_before_exec or result.error_in_exec
            self._finish_device()
        if error is not None:
            raise error

    def run_call(self, function: Callable[..., Any], args: tuple, kwargs: dict, capture: Capture) -> Any:
        """Call a function; its value travels to the notebook, tensors by way of the CPU."""
        with capturing(self.shell, capture, self.usual):
            value = portable(function(*args, **kwargs))
            self._finish_device()
            return value

    def _finish_device(self) -> None:
        """A cell ends when its GPU work has: so a call that nobody answers is told by the cell that made it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def reply(self, source: str = "") -> dict[str, Any]:
        """What the notebook is told of the running job: all of it when done, else the state."""
        job = self.job
        if job is None or not job.done.is_set():
            return {"done": False, "state": self.state(), "tail": job.capture.tail() if job else ""}
        error = None if job.error is None else describe(job.error, source, self.cells)
        return {
            "done": True,
            "items": job.capture.finish(),
            "value": job.value,
            "error": error,
            "state": self.state(),
            "fingerprints": ledger.fingerprints(),
        }

    def state(self) -> dict[str, Any]:
        """Where this rank is: its line, what it waits in, how much it has done."""
        running = self.job is not None and not self.job.done.is_set()
        waiting = self._waiting() if running else []
        error = self.job.error if self.job is not None and not running else None
        failed = error is not None
        kind = "waiting" if waiting else "running" if running else "raised" if failed else "done"
        return {
            "rank": self.rank,
            "state": kind,
            "line": self.cells.line_of(sys._current_frames().get(self.worker.thread.ident or 0)) if running else None,
            "error": _one_line(error) if failed else None,
            "progress": _progress(),
            "cpu_s": self.worker.cpu_seconds() if running else 0.0,
            "host": socket.gethostname(),
        }

    def _waiting(self) -> list[Any]:
        """The calls this rank waits in; on NCCL also those whose kernel has not finished."""
        waiting: list[Any] = list(ledger.waiting().values())
        if self.groups.making:
            waiting.append(self.groups.making)
        return waiting


@contextmanager
def _no_traceback(shell: Any) -> Iterator[None]:
    """Keep IPython from printing tracebacks: the notebook shows one for all ranks."""
    names = ("showtraceback", "showsyntaxerror")
    for name in names:
        setattr(shell, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name in names:
            shell.__dict__.pop(name, None)


def portable(value: Any) -> Any:
    """The value with tensors detached and on the CPU, proven to travel."""
    value = _to_cpu(value)
    try:
        pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"a {type(value).__name__} cannot travel from a rank to the notebook ({error}); "
            "return tensors, numbers, strings, or lists and dicts of them"
        ) from None
    return value


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if type(value) in (list, tuple, set):
        return type(value)(map(_to_cpu, value))
    if type(value) is dict:
        return {key: _to_cpu(item) for key, item in value.items()}
    return value


def _progress() -> list[tuple[float, float | None]]:
    """Begin and end of the latest calls: whatever moves changes it."""
    return [(event.begin_s, event.end_s) for event in ledger.recent()[-16:]]


def _one_line(error: BaseException | None) -> str:
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return text[-1] if text else "an exception"
