"""Which notebooks a course has: the sources, what is built from each, and names that must match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"\d\d_[a-z0-9_]+")


@dataclass(frozen=True)
class Product:
    """One notebook to build."""

    kind: str  # "lesson", "solution" or "exercise"
    name: str  # relative to the root
    source: Path
    target: Path


def products(root: Path, lessons: Sequence[str | int] | None = None) -> list[Product]:
    """The notebooks of the chosen lessons (number, or name), or of all, in the order of their numbers.

    Raises: ValueError for a lesson that is not there, a name that is not NN_name, a solution without lesson.
    """
    sources = {folder: _stems(root, folder) for folder in ("notebooks", "solutions")}
    if not sources["notebooks"]:
        raise ValueError(f"no sources in {root / 'notebooks' / 'src'}: is this the folder of the course?")
    unmatched = [stem for stem in sources["solutions"] if stem not in sources["notebooks"]]
    if unmatched:
        known = ", ".join(sources["notebooks"])
        raise ValueError(f"solutions/src/{unmatched[0]}.py matches no lesson in notebooks/src: {known}")
    found = []
    for stem in _chosen(sources["notebooks"], lessons):
        found.append(_product(root, "lesson", "notebooks", "notebooks", stem))
        if stem in sources["solutions"]:
            found.append(_product(root, "solution", "solutions", "solutions", stem))
            found.append(_product(root, "exercise", "solutions", "exercises", stem))
    return found


def orphans(root: Path) -> list[str]:
    """Built notebooks that no source builds any more."""
    built = {product.target for product in products(root)}
    folders = [root / folder for folder in ("notebooks", "solutions", "exercises")]
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.ipynb"))]
    return [path.relative_to(root).as_posix() for path in found if path not in built and path.name[0] != "."]


def _product(root: Path, kind: str, sources: str, targets: str, stem: str) -> Product:
    name = f"{targets}/{stem}.ipynb"
    return Product(kind, name, root / sources / "src" / f"{stem}.py", root / name)


def _stems(root: Path, folder: str) -> list[str]:
    stems = sorted(path.stem for path in (root / folder / "src").glob("*.py"))
    numbers: dict[str, str] = {}
    for stem in stems:
        if not NAME.fullmatch(stem):
            raise ValueError(f"{folder}/src/{stem}.py: a source is named NN_name.py, such as 01_collectives.py")
        if stem[:2] in numbers:
            raise ValueError(f"{folder}/src/{stem}.py has the same number as {numbers[stem[:2]]}.py")
        numbers[stem[:2]] = stem
    return stems


def _chosen(stems: list[str], lessons: Sequence[str | int] | None) -> list[str]:
    if lessons is None:
        return stems
    chosen = []
    for lesson in lessons:
        text = f"{lesson:02d}" if isinstance(lesson, int) else str(lesson).removesuffix(".ipynb")
        match = [stem for stem in stems if text in (stem, stem[:2]) or text.zfill(2) == stem[:2]]
        if not match:
            raise ValueError(f"no lesson {text}: there are {', '.join(stems)}")
        chosen += match
    return sorted(set(chosen))
