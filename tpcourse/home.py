"""Where Jupyter, IPython and matplotlib keep their files when the user's home cannot be written."""

import atexit
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

FOLDERS = {
    "IPYTHONDIR": "ipython",
    "JUPYTER_CONFIG_DIR": "jupyter",
    "JUPYTER_DATA_DIR": "jupyter/data",
    "JUPYTER_RUNTIME_DIR": "jupyter/runtime",
    "MPLCONFIGDIR": "matplotlib",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "share",
}


def home_is_writable(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Whether the user's home is a folder that this process may write to."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    return home.is_dir() and os.access(home, os.W_OK | os.X_OK)


def settle_home(environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """Give this process and its children a private folder to write to, if the home is not writable.

    What the user has set stays as it is. The folder is removed when this process ends.
    """
    missing = [name for name in FOLDERS if not environ.get(name)]
    if home_is_writable(environ) or not missing:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tpcourse-home-"))
    for name in missing:
        place = folder / FOLDERS[name]
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        environ[name] = str(place)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:      # a forked child has inherited this function, not the folder
        shutil.rmtree(folder, ignore_errors=True)
