"""Notebooks that nbval alone judges wrongly, and sound ones; for the tests of the plugin."""

from typing import Any

from nbformat.v4 import new_code_cell, new_output

PX = """
import time
from IPython.core.magic import register_cell_magic
@register_cell_magic
def px(line, cell):
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass    # as ipyparallel's does
"""
CLEAR = "from IPython.display import clear_output\nprint('before')\nclear_output()\nprint('after')"
UPDATE = "from IPython.display import display\nh = display('old', display_id=True)\nh.update('new')"
CAPTURED = "import ipywidgets\nwith ipywidgets.Output():\n    print('kept by the widget')"
FLOOD = """
import time
while True:
    try:
        print('x')
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass
"""


def cell(source: str, *outputs: Any, tags: tuple[str, ...] = ()) -> Any:
    return new_code_cell(source, outputs=list(outputs), execution_count=1, metadata={"tags": list(tags)})


def printed(text: str) -> Any:
    return new_output("stream", name="stdout", text=text)


def value(text: str) -> Any:
    return new_output("execute_result", data={"text/plain": text}, execution_count=1)


ERROR = new_output("error", ename="ValueError", evalue="wanted", traceback=[])
MAGIC = new_output("stream", name="stderr", text="UsageError: Cell magic `%%nosuch` not found.\n")
NOTEBOOKS = {
    "sound": [
        cell("print('fine')", printed("fine\n")),
        cell("raise ValueError('wanted')", ERROR, tags=("raises-exception",)),
        cell("import os\nos.environ['TPCOURSE_LIVE']", value("'0'")),
        cell(CLEAR, printed("after\n")),
        cell(UPDATE, new_output("display_data", data={"text/plain": "'new'"})),
        cell(CAPTURED),
        cell("object()", value("<object>"), tags=("nbval-ignore-output",)),
        cell("1 / 0", tags=("nbval-skip",)),
        cell("1 / 0", ERROR, tags=("raises-exception", "nbval-ignore-output")),  # another kind on this machine
    ],
    "small": [
        cell("%%nosuch\n1", MAGIC),
        cell("1", value("1"), tags=("raises-exception",)),
        cell("1 / 0"),
        cell("int('x') if False else nosuch", ERROR, tags=("raises-exception",)),
        cell("print('other')", printed("stored\n")),
        cell("2", value("2")),
    ],
    "deadlock": [cell(PX), cell("%%px\nwait()"), cell("print('passes?')", printed("passes?\n"))],
    "slow": [cell("import time\ntime.sleep(60)"), cell("1", value("1"))],
    "flood": [cell(FLOOD)],
    "quit": [cell("quit()"), cell("1", value("1"))],
    "dies": [cell("import os\nos._exit(0)"), cell("1", value("1"))],
}
