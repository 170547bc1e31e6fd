"""The thread on which a rank runs its cells. It can be left behind in a wait that nothing ends."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from tpcourse.engine.capture import Capture


class Job:
    """One cell or call: what to run, and what came out."""

    def __init__(self, run: Callable[[Capture], Any], on_start: Callable[[], None]) -> None:
        self.run, self.on_start = run, on_start
        self.capture = Capture()
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def execute(self) -> None:
        try:
            self.on_start()
            self.value = self.run(self.capture)
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()


class Worker:
    """Runs jobs one after the other on a thread of its own."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True, name="cells")
        self.thread.start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.execute()

    def submit(self, job: Job) -> None:
        self.jobs.put(job)

    def interrupt(self, error: type[BaseException] = KeyboardInterrupt) -> None:
        """Raise `error` in the thread at its next Python instruction; code inside C has to return first."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(error)
        )

    def leave(self, job: Job) -> None:
        """Leave the thread to itself: nothing it prints counts, and it ends as soon as it wakes."""
        job.capture.left.add(self.thread.ident or 0)
        self.jobs.put(None)
        self.interrupt(SystemExit)

    def cpu_seconds(self) -> float:
        """Processor time of the thread so far (of the whole process where threads have no clock)."""
        if hasattr(time, "pthread_getcpuclockid") and self.thread.ident:
            return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))
        return time.process_time()
