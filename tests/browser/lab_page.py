"""JupyterLab in a browser, as a person uses it: open a notebook, run it from the menu, type into a cell."""

import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page

SHOTS = Path(__file__).parent / "shots"

# The notebook in front, as JupyterLab holds it: what has run, what is running, what went wrong.
STATE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const kernel = panel?.sessionContext?.session?.kernel;
  if (!panel?.content?.model || !kernel) return {path: '', kernel: 'none', cells: []};
  return {
    path: panel.context.path,
    kernel: kernel.status,
    cells: Array.from(panel.content.model.cells, cell => cell.toJSON()),
  };
}"""
SELECT = """index => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.activeCellIndex = index;
  notebook.deselectAll();
  return notebook.scrollToItem(index, 'smart');
}"""


class LabPage:
    """One browser page on one Jupyter server."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.base, self.query = url.split("/lab/", 1)[0], url.split("?", 1)[1]

    def open(self, path: str) -> None:
        """Open a notebook and wait until its kernel is idle."""
        self.page.goto(f"{self.base}/lab/tree/{path}?{self.query}")
        self.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget")
        self.wait(lambda: (state := self.state())["path"] == path and state["kernel"] == "idle", 60, f"{path} opens")

    def state(self) -> dict[str, Any]:
        return self.page.evaluate(STATE)

    def cell(self, index: int) -> dict[str, Any]:
        return self.state()["cells"][index]

    def menu(self, menu: str, command: str) -> None:
        """Choose an entry of the menu bar."""
        self.page.locator(".lm-MenuBar-item", has_text=menu).first.click()
        self.page.locator(f'.lm-Menu-item[data-command="{command}"]').click()

    def run_all(self, timeout_s: float) -> None:
        """Run All from the menu, and wait for the last cell or the first error that no tag expects."""
        self.menu("Run", "runmenu:run-all")
        self.wait(self.has_run_all, timeout_s, "every cell has run")

    def has_run_all(self) -> bool:
        state = self.state()
        cells = [cell for cell in state["cells"] if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
        expected = [cell for cell in cells if "raises-exception" in cell["metadata"].get("tags", [])]
        failed = [cell for cell in cells if error_of(cell) and cell not in expected]
        assert not failed, f"{''.join(failed[0]['source'])}\n{error_of(failed[0])}"
        return state["kernel"] == "idle" and all(cell["execution_count"] for cell in cells)

    def select(self, index: int) -> Locator:
        """Make a cell the active one, and bring it into view."""
        self.page.evaluate(SELECT, index)
        active = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell.jp-mod-active")
        active.scroll_into_view_if_needed()
        return active

    def type_over(self, index: int, source: str) -> None:
        """Replace what is in a cell by typing into its editor."""
        self.select(index).locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)

    def run(self, index: int, timeout_s: float = 90) -> dict[str, Any]:
        """Run one cell with Shift+Enter and return it with its outputs."""
        before = self.cell(index)["execution_count"]
        self.select(index).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("Shift+Enter")

        def done() -> bool:
            state = self.state()
            return state["kernel"] == "idle" and state["cells"][index]["execution_count"] not in (before, None)

        self.wait(done, timeout_s, f"cell {index} has run")
        return self.cell(index)

    def wait(self, until: Any, timeout_s: float, what: str) -> None:
        """Ask again until it is so; a page that never gets there is photographed."""
        end_s = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > end_s:
                self.shoot("timeout")
                raise TimeoutError(f"after {timeout_s:g} s it is still not so that {what}: see {SHOTS}/timeout.png")
            self.page.wait_for_timeout(100)

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")


def error_of(cell: dict[str, Any]) -> str | None:
    """The error that a cell ended in."""
    errors = (f"{out['ename']}: {out['evalue']}" for out in cell.get("outputs", []) if out["output_type"] == "error")
    return next(errors, None)


def text_of(cell: dict[str, Any]) -> str:
    """What a cell printed."""
    return "".join("".join(out.get("text", "")) for out in cell["outputs"] if out["output_type"] == "stream")
