"""`tpcourse lab`: JupyterLab on the course, with the fork server beside it."""

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tpcourse.cli.course import course_root, notebook, share_package

SETTINGS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


def run(args: argparse.Namespace) -> int:
    """Serve the course on this machine until Ctrl-C; ranks, kernels and server end with it."""
    from tpcourse.ranks import preload_server

    root = course_root()
    share_package()
    page = notebook(root, args.lesson).relative_to(root).as_posix()
    with preload_server(), no_pop_up():
        serve(root, page, args.rest)
    return 0


@contextmanager
def no_pop_up() -> Iterator[None]:
    """Turn off JupyterLab's question about news, without touching the user's settings."""
    with tempfile.TemporaryDirectory(prefix="tpcourse-lab-") as folder:
        config = Path(folder, "labconfig")
        config.mkdir()
        (config / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
        given = os.environ.get("JUPYTER_CONFIG_PATH")
        os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [folder, given]))
        yield


def options(root: Path, page: str) -> list[str]:
    """JupyterLab's options for the course; what the person types comes after them and wins."""
    given = [
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{page}",
        "--ServerApp.ip=127.0.0.1",         # by address: works where names do not resolve
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--KernelManager.transport_encryption=auto",    # other users of the machine cannot read along
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        given.append("--allow-root")
    return given


def serve(root: Path, page: str, rest: list[str]) -> None:
    """Run the Jupyter server in this process and print the one line that a person needs."""
    from jupyterlab.labapp import LabApp

    if not any(word in option for option in rest for word in ("--debug", "log-level", "log_level")):
        logging.disable(logging.WARNING)
    app = LabApp.initialize_server([*options(root, page), *rest])
    app.log.addFilter(_not_the_banner)
    for number in (signal.SIGINT, signal.SIGTERM):      # one Ctrl-C ends it, without a question
        signal.signal(number, lambda *_: app.stop(from_signal=True))
    print(f"The course is at {address(app)}\nCtrl-C ends it, with all ranks.", file=sys.stderr, flush=True)
    app.start()


def address(app: Any) -> str:
    """The page's URL with its token, as the server answers it."""
    token = app.identity_provider.token
    page = app.default_url.lstrip("/")
    return f"{app.connection_url}{page}" + (f"?token={token}" if token else "")


def _not_the_banner(record: logging.LogRecord) -> bool:
    return record.levelno < logging.CRITICAL or "To access the server" not in record.getMessage()
