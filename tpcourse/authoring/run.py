"""Run notebooks, each in its own kernel, all beside one preloaded fork server."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tpcourse.authoring.notebook import AuthoringError, Cell, Notebook, tags, where
from tpcourse.authoring.outputs import ANSI

CELL_LIMIT_S = 120
LAST_LINES = 12


@contextmanager
def environment(**names: str) -> Iterator[None]:
    """Set environment variables for the processes that we start, and put back what was there."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class Kernels:
    """Runs notebooks on 4 gloo ranks, whatever this machine has, unseen by the user's own settings.

    Trap: a notebook runs in its own folder, so that relative paths work; what it writes there stays there.
    """

    def __init__(self, cell_limit_s: float = CELL_LIMIT_S) -> None:
        self.cell_limit_s = cell_limit_s
        self._stack = ExitStack()
        self._log: Any = None

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, notebook: Notebook, folder: Path, name: str) -> Notebook:
        """The notebook with its outputs, as a new one.

        Raises: `AuthoringError` with the cell's source and the error's last lines if a cell fails, takes too
        long, ends its kernel, or is tagged raises-exception and raises nothing.
        """
        if self._log is None:
            self._prepare()
        executed = copy.deepcopy(notebook)
        client = _client(executed, folder, self.cell_limit_s)
        try:
            client.execute(stderr=self._log)
        except Exception as error:  # nbclient's three kinds, and a kernel that does not start
            raise AuthoringError(self._why(executed, client, error, name)) from error
        _expect_errors(executed, name)
        return executed

    def _prepare(self) -> None:
        private = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tpcourse-build-")))
        (private / "matplotlibrc").touch()
        self._log = self._stack.enter_context((private / "kernel.log").open("wb"))
        root = str(Path(__file__).parents[2])
        self._stack.enter_context(
            environment(
                CUDA_VISIBLE_DEVICES="",
                TPCOURSE_BACKEND="gloo",
                TPCOURSE_LIVE="0",
                IPYTHONDIR=str(private / "ipython"),  # no startup files of the user's
                JUPYTER_RUNTIME_DIR=str(private / "runtime"),
                MATPLOTLIBRC=str(private / "matplotlibrc"),
                PYTHONPATH=os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
            )
        )
        if not os.environ.get("TPCOURSE_SERVER"):
            with suppress(ImportError):  # without it every notebook imports torch by itself
                from tpcourse.ranks import preload_server

                self._stack.enter_context(preload_server())

    def _why(self, notebook: Notebook, client: Any, error: Exception, name: str) -> str:
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

        cell, index = _running(notebook, client)
        if cell is None:
            return f"{name}: the kernel did not start: {type(error).__name__}: {error}"
        if isinstance(error, CellTimeoutError):
            reason = f"took longer than {self.cell_limit_s:g} s"
        elif isinstance(error, DeadKernelError):
            reason = "ran while its kernel ended (exit, quit, or killed)"
        elif isinstance(error, CellExecutionError):
            return f"{name}: {where(cell, index)} raised\n{_source(cell)}\n{_last_lines(str(error))}"
        else:
            reason = f"failed: {type(error).__name__}: {error}"
        return f"{name}: {where(cell, index)} {reason}\n{_source(cell)}"


def _client(notebook: Notebook, folder: Path, limit_s: float) -> Any:
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient

    class Client(NotebookClient):
        at: int | None = None

        def create_kernel_manager(self) -> Any:
            manager = super().create_kernel_manager()
            # This Python's kernel, not one that a home folder names python3.
            manager.kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
            return manager

        async def async_execute_cell(self, cell: Cell, cell_index: int, *args: Any, **kwargs: Any) -> Cell:
            self.at = cell_index
            return await super().async_execute_cell(cell, cell_index, *args, **kwargs)

    return Client(
        notebook,
        kernel_name="python3",
        timeout=limit_s,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )


def _running(notebook: Notebook, client: Any) -> tuple[Cell | None, int]:
    at = client.at
    return (None, 0) if at is None else (notebook.cells[at], at)


def _expect_errors(notebook: Notebook, name: str) -> None:
    for index, cell in enumerate(notebook.cells):
        if "raises-exception" in tags(cell) and not any(out.output_type == "error" for out in cell.outputs):
            raise AuthoringError(f"{name}: {where(cell, index)} is tagged raises-exception, raised nothing")


def _source(cell: Cell) -> str:
    return "\n".join(f"    {line}" for line in cell.source.splitlines())


def _last_lines(text: str) -> str:
    lines = [line for line in ANSI.sub("", text).splitlines() if line.strip()]
    return "\n".join(f"  | {line}" for line in lines[-LAST_LINES:])
