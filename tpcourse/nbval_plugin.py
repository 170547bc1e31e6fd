"""A pytest plugin that closes nbval's holes: whatever did not provably pass has failed.

nbval alone passes a cell that was interrupted at its limit, an unknown magic, `quit()` and an expected error
that never came; it waits for the whole limit when the kernel is dead. Idle without --nbval or --nbval-lax.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from queue import Empty
from typing import Any

import pytest

try:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionComplete
    from nbformat.v4 import new_notebook
    from nbval.plugin import IPyNbCell, IPyNbFile, coalesce_streams
except ImportError:  # nbval is not installed: there is nothing to guard
    IPyNbCell = IPyNbFile = pytest.Item

CELL_LIMIT_S = 120  # in place of nbval's 2000
AFTER_INTERRUPT_S = 5
STACK = pytest.StashKey[ExitStack]()


class Lost(Exception):
    """No further cell can run in this kernel; says what the cell did."""


def pytest_configure(config: pytest.Config) -> None:
    """Limits and the kernel of this environment, where nbval's defaults would hang or miss."""
    if not (config.getoption("nbval", False) or config.getoption("nbval_lax", False)):
        return
    if config.option.nbval_cell_timeout == 2000:
        config.option.nbval_cell_timeout = CELL_LIMIT_S
    if not config.option.nbval_kernel_name:
        config.option.nbval_current_env = True  # the kernel name stored in a notebook may exist nowhere
    config.stash[STACK] = ExitStack()
    config.add_cleanup(config.stash[STACK].close)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(parent: pytest.Collector) -> Generator[None, list[Any], list[Any]]:
    """A guarded notebook in the place of each of nbval's."""
    found = yield
    return [GuardedFile.from_parent(parent, path=file.path) if type(file) is IPyNbFile else file for file in found]


class GuardedFile(IPyNbFile):
    """A notebook whose kernel is watched; once it is lost, no later cell passes."""

    lost: str | None = None  # why no further cell can run

    def collect(self) -> Iterator[pytest.Item]:
        for cell in super().collect():
            names = {"name": cell.name, "cell_num": cell.cell_num, "cell": cell.cell, "options": cell.options}
            yield GuardedCell.from_parent(self, **names)

    def setup(self) -> None:
        cells = [copy.deepcopy(cell) for cell in self.nb.cells if cell.cell_type == "code"]
        if not os.environ.get("TPCOURSE_SERVER") and any("start_ranks" in cell.source for cell in cells):
            with suppress(ImportError):  # one server for the whole test run
                from tpcourse.ranks import preload_server

                self.config.stash[STACK].enter_context(preload_server())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TPCOURSE_LIVE", "0")
            super().setup()
        # Gathers outputs as a build does: with cleared outputs, updated displays and captured ones.
        self.client = NotebookClient(new_notebook(cells=cells), km=self.kernel.km, record_timing=False)
        self.client.kc = self.kernel.kc


class GuardedCell(IPyNbCell):
    """A cell that passes only if its kernel says so in time, lives on, and shows what is stored."""

    def setup(self) -> None:
        """nbval expects the cells after a time-out to fail; here they fail."""

    def runtest(self) -> None:
        if self.options["skip"]:
            pytest.skip("tagged nbval-skip")
        if self.parent.lost:
            self.raise_cell_error(self.parent.lost)
        self.fresh = self.parent.client.nb.cells[self.cell_num]
        self.fresh.outputs = []
        self.parent.client.clear_before_next_output = False
        try:
            reply = self._run(self.parent.kernel, self.config.option.nbval_cell_timeout)
        except Lost as error:
            self.parent.lost = f"not run: cell {self.cell_num} {error}"
            with suppress(Exception):  # it may have ended by itself
                self.parent.kernel.stop()
            self.raise_cell_error(f"The cell {error}", self._traceback())
        self.test_outputs = coalesce_streams(self.fresh.outputs)
        self._judge(reply, self.cell.outputs)

    def _run(self, kernel: Any, limit_s: float) -> dict[str, Any]:
        """Run the cell, gather its outputs, and return the kernel's reply; raise Lost where there is none."""
        # With history: cells are numbered as in JupyterLab, and reports name cells by number.
        msg_id = kernel.kc.execute(self.cell.source, allow_stdin=False, stop_on_error=False, store_history=True)
        reply = self._gather(kernel, msg_id, limit_s)
        if reply is None:
            kernel.interrupt()  # for a traceback; whatever the cell makes of it, it has failed
            with suppress(Lost):
                self._gather(kernel, msg_id, AFTER_INTERRUPT_S)
            raise Lost(f"took longer than its limit of {limit_s:g} s")
        if any(payload.get("source") == "ask_exit" for payload in reply.get("payload", [])):
            raise Lost("ended its kernel (quit or exit)")
        return reply

    def _gather(self, kernel: Any, msg_id: str, limit_s: float) -> dict[str, Any] | None:
        """The kernel's reply once the cell has ended and shown everything; None if time is up before."""
        end_s, reply, idle = time.monotonic() + limit_s, None, False
        while not (reply and idle):
            if not kernel.is_alive():
                raise Lost("ended its kernel (exit, a crash, or killed)")
            if time.monotonic() > end_s:
                return None
            # Both channels, so that a cell that shows much does not fill one up while we wait at the other.
            for channel, wait_s in (("shell", 0.1 if idle else 0), ("iopub", 0 if idle else 0.2)):
                with suppress(Empty):
                    message = kernel.get_message(channel, timeout=wait_s)
                    if message["parent_header"].get("msg_id") != msg_id:
                        continue
                    try:
                        reply = message["content"] if channel == "shell" else reply
                        if channel == "iopub":
                            self.parent.client.process_message(message, self.fresh, self.cell_num)
                    except CellExecutionComplete:
                        idle = True
        return reply

    def _judge(self, reply: dict[str, Any], stored: list[Any]) -> None:
        raised = reply.get("ename", reply["status"])
        expected = [output.ename for output in stored if output.output_type == "error"]
        if not self.options["check_exception"] and reply["status"] != "ok":
            self.raise_cell_error(f"The cell raised {raised}", self._traceback())
        if self.options["check_exception"] and reply["status"] == "ok":
            self.raise_cell_error("The cell is tagged raises-exception and raised nothing")
        free = "nbval-ignore-output" in self.cell.metadata.get("tags", [])  # the kind depends on the machine
        if self.options["check_exception"] and expected and raised not in expected and not free:
            self.raise_cell_error(f"The cell raised {raised}, not {expected[0]}", self._traceback())
        if self.cell.execution_count is None:
            if stored:
                self.raise_cell_error("Unrun reference cell has outputs")
        elif self.options["check"] and not self.compare_outputs(self.test_outputs, coalesce_streams(stored)):
            self.raise_cell_error("Cell outputs differ", "\n".join(self.comparison_traceback))

    def _traceback(self) -> str:
        errors = [output for output in self.fresh.outputs if output.output_type == "error"]
        return "\n".join(line for output in errors for line in output.traceback)
