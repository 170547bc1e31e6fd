"""What a saved output may hold: nothing of the machine, of the moment, or of a viewer's live state."""

from __future__ import annotations

import base64
import re
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from tpcourse.authoring.notebook import METADATA, AuthoringError, Cell, Notebook, tags, where

WIDGET = "application/vnd.jupyter.widget-view+json"
SHOWN = {"image/png", "image/svg+xml", "image/jpeg", "text/html", "text/markdown", "text/latex"}
ANSI = re.compile(r"\x1b\[[0-9;]*m")
FILE_FRAME = re.compile(r"^File ")
PNG = b"\x89PNG\r\n\x1a\n"
KEPT_CHUNKS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"pHYs"}  # not tEXt, tIME: Software and Date

FOLDERS = "tmp|home|root|Users|var|private|usr|opt|mnt|srv"
NOISE = {
    r"\b(IPController|IPEngine|IPCluster|IPKernelApp|KernelApp)": "a log line of the engines",
    r"\b(Starting|Stopping) (\d+ )?(engine|controller)": "a log line of the engines",
    r"(?i)\bzmq": "a message of ZMQ",
    r"\d+%\||\d(it/s|s/it)\b|\r(?!\n)": "a progress bar",
    rf"(?<![\w./<-])(?:file://)?/(?:{FOLDERS})/[\w.-]+": "an absolute path",
    r"\bat 0x[0-9a-f]{6,}": "a memory address",
    r"<dc:date>": "the date in an svg (use png)",
}


def clean(notebook: Notebook, name: str) -> None:
    """Make the outputs of an executed notebook fit to be saved, in place.

    Streams are merged, tracebacks cut to the notebook's own lines, png text dropped, counts renumbered.
    Raises: `AuthoringError` for noise that no reader should see, and for a widget without a static picture.
    """
    notebook.metadata = NotebookNode(METADATA)  # without the state of widgets
    count = 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if cell.source.strip():
            count += 1
            cell.execution_count = count
        problem = _drop_widgets(cell)
        cell.outputs = [_clean_output(output, count) for output in _merged(cell.outputs)]
        problem = problem or _noise(cell)
        if problem:
            raise AuthoringError(f"{name}: {where(cell, index)}: its output holds {problem}")


def _merged(outputs: list[NotebookNode]) -> Iterator[NotebookNode]:
    """Outputs in order; streams between two others as one stdout and one stderr: pieces are chance."""
    streams: dict[str, NotebookNode] = {}
    for output in [*outputs, None]:
        if output is not None and output.output_type == "stream":
            text = streams[output.name].text if output.name in streams else ""
            streams[output.name] = NotebookNode(output, text=text + output.text)
            continue
        yield from (streams[name] for name in ("stdout", "stderr") if name in streams)
        streams = {}
        if output is not None:
            yield output


def _clean_output(output: NotebookNode, count: int) -> NotebookNode:
    if output.output_type == "execute_result":
        output.execution_count = count
    if output.output_type == "error":
        frames = [frame for frame in output.traceback if not FILE_FRAME.match(ANSI.sub("", frame))]
        output.traceback = frames
    data = output.get("data", {})
    if "image/png" in data:
        data["image/png"] = strip_png(data["image/png"])
    return output


def _drop_widgets(cell: Cell) -> str | None:
    # A widget's state lives in the kernel. A saved view without it reads "Loading widget..." for ever, so the
    # static picture and the sentence beside it are saved; running the cell brings the widget back.
    bundles = [output.get("data", {}) for output in cell.outputs]
    widgets = [data for data in bundles if data.pop(WIDGET, None) is not None]
    for output in cell.outputs:
        output.get("metadata", {}).pop(WIDGET, None)
    if widgets and not any(SHOWN & set(data) for data in bundles):
        return "a widget without a static picture; display an image/png with it"
    if any(re.match(r"\w+\(.*=", data.get("text/plain", "")) for data in widgets):
        return f"the repr of a widget, `{_excerpt(widgets[0]['text/plain'], 0)}`; give it a sentence as text/plain"
    return None


def strip_png(text: str) -> str:
    """A base64 png with only the chunks that hold the picture."""
    data = base64.b64decode(text)
    if not data.startswith(PNG):
        return text
    kept, at = [PNG], len(PNG)
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] in KEPT_CHUNKS:
            kept.append(data[at : at + 12 + length])
        at += 12 + length
    return base64.b64encode(b"".join(kept)).decode()


def _noise(cell: Cell) -> str | None:
    for output in cell.outputs:
        if output.get("name") == "stderr" and "allow-stderr" not in tags(cell):
            return f"text on stderr, `{_excerpt(output.text, 0)}` (tag allow-stderr if that is meant)"
        for text in _texts(output):
            problem = _noise_in(text)
            if problem:
                return problem
    return None


def _noise_in(text: str) -> str | None:
    for pattern, what in NOISE.items():
        match = re.search(pattern, text)
        if match:
            return f"{what}, `{_excerpt(text, match.start())}`"
    for folder in {str(Path.cwd()), str(Path.home()), tempfile.gettempdir(), sys.prefix, str(_package())}:
        if len(folder) > 4 and folder in text:
            return f"an absolute path, `{_excerpt(text, text.index(folder))}`"
    return None


def _package() -> Path:
    return Path(__file__).parents[2]


def _texts(output: NotebookNode) -> Iterator[str]:
    if output.output_type == "error":
        yield ANSI.sub("", "\n".join([*output.traceback, output.evalue]))
    yield output.get("text", "")
    for kind, value in output.get("data", {}).items():
        if isinstance(value, str) and not kind.startswith("image/png"):
            yield value


def _excerpt(text: str, at: int) -> str:
    begin = text.rfind("\n", 0, at) + 1
    line = text[begin:].split("\n", 1)[0].strip()
    return line if len(line) <= 80 else line[:77] + "..."
