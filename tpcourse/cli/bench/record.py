"""Recordings: figures with the machine they come from, for lessons to draw beside the learner's own."""

import datetime
import json
import os
import sys
import tempfile
from pathlib import Path

import tpcourse
from tpcourse.cli import machine
from tpcourse.cli.bench import Result

FOLDER = Path(tpcourse.__file__).parent / "recordings"


def record(name: str, result: Result, folder: Path = FOLDER) -> Path:
    """Write the figures and their provenance to `NAME.json`, all of it or nothing."""
    folder.mkdir(exist_ok=True)
    content = {
        "bench": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["tpcourse", *sys.argv[1:]]),
        "machine": machine.provenance(),
        "figures": result.figures,
        "columns": result.columns,
        "rows": result.rows,
    }
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-", suffix=".json")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, folder / f"{name}.json")
    except BaseException:
        os.unlink(temporary)
        raise
    return folder / f"{name}.json"
