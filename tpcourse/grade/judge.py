"""The judge's side of a run: pytest with nbval on the rebuilt notebook, in a clean environment, notes to a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tpcourse.grade.cage import Limits

PLUGINS = ("nbval.plugin", "tpcourse.nbval_plugin", "tpcourse.grade.plugin")
GRACE_S = 25  # after the cell's own limit, for ranks that do not obey


def judge(folder: Path, box: Path, salt: str, limits: Limits) -> None:
    """Run nbval on `folder/work/graded.ipynb`; ends the process."""
    import pytest

    os.chdir(folder / "work")
    os.environ.update(environment(folder, box, salt, limits))
    options = ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={limits.cell_s + GRACE_S}", "-q", "--color=no"]
    options += ["-p", "no:cacheprovider", "-c", "pytest.ini", "--rootdir=.", f"--basetemp={folder / 'tmp' / 'pytest'}"]
    options += ["-W", "ignore"]
    Path("pytest.ini").write_text("[pytest]\n")
    for plugin in PLUGINS:
        options += ["-p", plugin]
    status = pytest.main([*options, "graded.ipynb"])
    sys.stdout.flush()
    os._exit(int(status))


def environment(folder: Path, box: Path, salt: str, limits: Limits) -> dict[str, str]:
    """What kernel and ranks find set: their folders, the fork server of the pen, and nothing of the user's."""
    jupyter = {f"JUPYTER_{kind}_DIR": str(folder / "jupyter" / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    return {
        **jupyter,
        "HOME": str(box / "home"),
        "TMPDIR": str(box),
        "IPYTHONDIR": str(folder / "ipython"),
        "MPLCONFIGDIR": str(folder / "tmp"),
        "TPCOURSE_SERVER": str(box / "server"),
        "TPCOURSE_LIVE": "0",
        "TPCOURSE_SALT": salt,
        "TPCOURSE_GRADE": str(folder),
        "TPCOURSE_CELL_S": str(limits.cell_s),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
