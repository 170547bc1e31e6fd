"""Build lessons, solutions and exercises from their sources, or check that they are up to date."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tpcourse.authoring import compare, teaching
from tpcourse.authoring.course import Product, orphans, products
from tpcourse.authoring.exercise import to_exercise
from tpcourse.authoring.lint import lint
from tpcourse.authoring.notebook import AuthoringError, Notebook, to_bytes
from tpcourse.authoring.outputs import clean
from tpcourse.authoring.run import Kernels
from tpcourse.authoring.source import read_source


@dataclass
class Result:
    """What became of one notebook."""

    path: str  # relative to the root
    state: str  # "written", "unchanged", "stale" or "failed"
    problems: list[str] = field(default_factory=list)
    data: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        """Whether the notebook on disk is now what its source says."""
        return self.state in ("written", "unchanged")


def build(
    root: Path | str,
    lessons: Sequence[str | int] | None = None,
    check: bool = False,
    execute: bool | None = True,
    style: bool = True,
    cell_limit_s: float = 120,
) -> list[Result]:
    """Build the notebooks of a course, or with `check` only compare them with what is on disk, byte for byte.

    `execute`: True runs every notebook; None runs those whose code changed; False runs none, and
    one whose code changed is stale. Nothing is written unless every notebook succeeded. `style`: apply `lint` too.
    Raises: ValueError if a lesson or the folder of sources is not there, or if names do not match.
    """
    root = Path(root)
    wanted = products(root, lessons)
    with Kernels(cell_limit_s) as kernels:
        results = [_result(product, check, execute, style, kernels) for product in wanted]
    if lessons is None:
        results += [Result(name, "stale", ["has no source; delete it"]) for name in orphans(root)]
    if not check and all(result.state != "failed" for result in results):
        _write_all(root, results)
        results += _teaching(root, check)
    elif not check:
        for result in results:
            result.problems = result.problems or (["not written: another one failed"] if result.data else [])
    elif lessons is None:
        results += _teaching(root, check)
    return results


def _teaching(root: Path, check: bool) -> list[Result]:
    """The tables of TEACHING.md, which follow from the built notebooks."""
    try:
        texts = teaching.fresh(root)
    except AuthoringError as error:
        return [Result(teaching.FILE, "failed", [str(error)])]
    if texts is None:
        return []
    if texts[0] == texts[1]:
        return [Result(teaching.FILE, "unchanged")]
    if check:
        return [Result(teaching.FILE, "stale", ["its minutes are not those of the notebooks"])]
    write(root / teaching.FILE, texts[1].encode())
    return [Result(teaching.FILE, "written")]


def _write_all(root: Path, results: list[Result]) -> None:
    for result in results:
        if result.data:
            write(root / result.path, result.data)
            result.state = "written"


def _result(product: Product, check: bool, execute: bool | None, style: bool, kernels: Kernels) -> Result:
    saved = compare.read_saved(product.target)
    try:
        source = read_source(product.source)
        fresh = to_exercise(source, product.source.name) if product.kind == "exercise" else source
        if product.kind == "exercise":
            return _compared(product, fresh, saved, check)
        if style and (problems := lint(fresh)):
            return Result(product.name, "failed", problems)
        stale_code = not compare.same_code(fresh, saved)
        ran = execute is True or (execute is None and stale_code)
        if not ran and stale_code:
            return _never_run(product, fresh, saved)
        return _compared(product, _finished(product, fresh, saved, kernels, ran), saved, check)
    except AuthoringError as error:
        return Result(product.name, "failed", [str(error)])


def _finished(product: Product, fresh: Notebook, saved: Notebook | None, kernels: Kernels, ran: bool) -> Notebook:
    if ran:
        notebook = kernels.run(fresh, product.target.parent, product.source.name)
    else:
        assert saved is not None
        notebook = compare.with_outputs(fresh, saved)
    clean(notebook, product.source.name)
    if ran:
        compare.keep_machine_outputs(notebook, saved)
    return notebook


def _never_run(product: Product, fresh: Notebook, saved: Notebook | None) -> Result:
    if saved is None:
        return Result(product.name, "stale", ["is not built"])
    return Result(product.name, "stale", [compare.first_difference(fresh, saved, outputs=False)])


def _compared(product: Product, notebook: Notebook, saved: Notebook | None, check: bool) -> Result:
    data = to_bytes(notebook)
    with suppress(OSError):
        if product.target.read_bytes() == data:
            return Result(product.name, "unchanged")
    if not check:
        return Result(product.name, "stale", data=data)  # becomes "written" once all have succeeded
    if saved is None:
        return Result(product.name, "stale", ["is not built"])
    return Result(product.name, "stale", [compare.first_difference(notebook, saved, outputs=True)])


def write(path: Path, data: bytes) -> None:
    """Write a file at once: a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def failed(results: Iterable[Result]) -> bool:
    """Whether any notebook is not what its source says."""
    return not all(result.ok for result in results)
