"""Where the course's files lie, and which notebook a lesson number means."""

import os
import re
from pathlib import Path

import tpcourse
from tpcourse.cli import CommandError


def course_root(start: Path | None = None) -> Path:
    """The folder of the course: the current one or one above it, else the one the package lies in."""
    here = (start or Path.cwd()).absolute()
    package = Path(tpcourse.__file__).resolve().parents[1]
    for folder in (here, *here.parents, package):
        if (folder / "notebooks" / "src").is_dir() and (folder / "tpcourse").is_dir():
            return folder
    raise CommandError(
        f"the course's notebooks are neither here ({here}) nor beside the package ({package}). "
        "Clone the course, and run the command in its folder."
    )


def share_package() -> None:
    """Let the kernels that this process starts import the package from this checkout, installed or not."""
    package = Path(tpcourse.__file__).resolve().parents[1]
    if (package / "pyproject.toml").is_file():
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))


def notebook(root: Path, lesson: str, folder: str = "notebooks") -> Path:
    """The built notebook of a lesson: `1`, `01` and `01_collectives` all mean notebooks/01_collectives.ipynb."""
    found = numbered(root, folder)
    number = re.match(r"\d+", lesson)
    key = f"{int(number[0]):02d}" if number else lesson
    if key in found and found[key].stem.startswith(lesson if len(lesson) > 2 else key):
        return found[key]
    known = ", ".join(found) or "none built yet"
    raise CommandError(f"there is no lesson {lesson!r} in {folder}/; there are: {known}.")


def numbered(root: Path, folder: str) -> dict[str, Path]:
    """The notebooks of a folder by the two digits of their names, in order."""
    paths = sorted((root / folder).glob("[0-9][0-9]_*.ipynb"))
    return {path.name[:2]: path for path in paths}
