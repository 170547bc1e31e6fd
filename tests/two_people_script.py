"""The person who interrupts, restarts and stops, for `test_two_people`: lesson 01 in a notebook's kernel.

`python -m tests.two_people_script` prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager

LESSON = Path(__file__).parents[1] / "notebooks" / "01_collectives.ipynb"
LIMIT_S = 180
NUM_CELLS = 8
ENDLESS = "%%px\nx = torch.ones(3)\nwhile True:\n    dist.all_reduce(x)\n    open({mark!r}, 'w').write('1')"


def replies(client: Any, source: str, meanwhile: Any = None) -> dict[str, Any]:
    """Run a cell and wait for its reply; `meanwhile` is called once it runs."""
    asked = client.execute(source)
    if meanwhile is not None:
        meanwhile()
    while True:
        reply = client.get_shell_msg(timeout=LIMIT_S)
        if reply["parent_header"]["msg_id"] == asked:
            return reply["content"]


def begin(manager: Any) -> tuple[Any, list[str]]:
    """The first cells of the lesson, in a kernel that has just started; the status of each."""
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT_S)
    cells = [cell.source for cell in nbformat.read(LESSON, as_version=4).cells if cell.cell_type == "code"]
    return client, [replies(client, source)["status"] for source in cells[:NUM_CELLS]]


def interrupts(manager: Any, client: Any) -> dict[str, Any]:
    """An endless cell, and the square button."""
    mark = Path(os.environ["HOME"], "mark")

    def press() -> None:
        end = time.monotonic() + LIMIT_S
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.05)
        manager.interrupt_kernel()

    return replies(client, ENDLESS.format(mark=str(mark)), press)


def main() -> None:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=os.environ["HOME"], stderr=subprocess.DEVNULL)
    try:
        client, first = begin(manager)
        stopped = interrupts(manager, client)
        manager.restart_kernel(now=False)
        client, again = begin(manager)
        rest = [replies(client, source)["status"] for source in ("ranks.restart()", "ranks.stop()")]
    finally:
        manager.shutdown_kernel()
    print(json.dumps({"first": first, "stopped": stopped.get("ename"), "again": again, "rest": rest}), flush=True)


if __name__ == "__main__":
    main()
