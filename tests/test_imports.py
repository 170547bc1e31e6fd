"""Imports point downward in the rows of the package map, and the notebook's side starts without torch."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tpcourse"
ROWS = {
    0: ["dims", "costs", "memory", "reference", "layer", "adam", "home", "lazy", "progress"],
    1: ["ranks", "engine", "ledger", "watch", "check", "draw", "timeline"],
    2: ["wire", "conjugates", "overlap"],
    3: ["linear", "vocab", "sequence", "data", "zero", "context", "pipeline", "experts"],
    4: ["block", "train"],
    5: ["authoring", "grade", "cli", "nbval_plugin", "__main__"],
}
ROW_OF = {part: row for row, parts in ROWS.items() for part in parts}
APART = [3]  # rows whose parts do not import each other
STARTS_WITHOUT_TORCH = [
    "dims", "home", "progress", "ledger", "watch", "ranks", "check", "draw", "timeline", "train", "authoring", "cli",
    "nbval_plugin",
]  # fmt: skip


def module_of(path: Path) -> str:
    """tpcourse/wire/ring.py -> tpcourse.wire.ring."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """tpcourse.wire.ring -> wire; tpcourse itself -> ''."""
    return (module.split(".") + [""])[1]


def imports_of(source: str, module: str, is_folder: bool) -> Iterator[str]:
    """Every module that a source imports, anywhere in it, but not for type checking alone."""
    tree = ast.parse(source)
    skipped = {id(node) for block in ast.walk(tree) if _is_type_checking(block) for node in ast.walk(block)}
    package = module if is_folder else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            # `from tpcourse import wire` and `from torch import distributed` import what they name
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


SOURCES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
IMPORTS = {
    module: sorted(set(imports_of(path.read_text("utf-8"), module, path.name == "__init__.py")))
    for module, path in SOURCES.items()
}


def faults_of(imports: dict[str, list[str]]) -> Iterator[str]:
    """One sentence per import that the rows do not allow."""
    for module, names in imports.items():
        here = part_of(module)
        for name in names:
            there = part_of(name) if name.partition(".")[0] == "tpcourse" else None
            if here == "" or there in (None, "", here) or there not in ROW_OF:
                continue
            if ROW_OF[there] > ROW_OF[here]:
                yield f"{module} (row {ROW_OF[here]}) imports {name} (row {ROW_OF[there]}): rows point downward"
            elif ROW_OF[there] == ROW_OF[here] and ROW_OF[here] in APART:
                yield f"{module} imports {name}: parts of row {ROW_OF[here]} do not import each other"
        if ROW_OF.get(here) == 0 and any(f"{name}.".startswith("torch.distributed.") for name in names):
            yield f"{module} imports torch.distributed: row 0 must work without it"


def cycle_of(imports: dict[str, list[str]]) -> list[str] | None:
    """Parts that import each other in a circle, if there are any."""
    graph: dict[str, set[str]] = {}
    for module, names in imports.items():
        targets = {part_of(name) for name in names if name.startswith("tpcourse.")}
        graph.setdefault(part_of(module), set()).update(targets & set(ROW_OF) - {part_of(module)})
    graph.pop("", None)
    while free := [part for part, targets in graph.items() if not targets & set(graph)]:
        for part in free:
            del graph[part]
    return sorted(graph) or None


def test_every_file_belongs_to_a_row():
    assert {part_of(module) for module in SOURCES} - {""} <= set(ROW_OF)


def test_imports_point_downward():
    assert "\n".join(faults_of(IMPORTS)) == ""


def test_no_parts_import_each_other_in_a_circle():
    assert cycle_of(IMPORTS) is None


@pytest.mark.parametrize(
    ("module", "source", "sentence"),
    [
        ("tpcourse.wire.ring", "from tpcourse.linear import f", "tpcourse.linear.f (row 3): rows point downward"),
        ("tpcourse.wire.ring", "def f():\n    from ..linear import f", "rows point downward"),
        ("tpcourse.linear", "from tpcourse import vocab", "parts of row 3 do not import each other"),
        ("tpcourse.reference", "import torch.distributed as dist", "row 0 must work without it"),
        ("tpcourse.dims", "from torch.distributed import get_rank", "row 0 must work without it"),
        ("tpcourse.dims", "from torch import distributed", "row 0 must work without it"),
    ],
)
def test_an_import_that_the_rows_forbid_is_named(module, source, sentence):
    (fault,) = faults_of({module: list(imports_of(source, module, is_folder=False))})
    assert sentence in fault


def test_a_circle_within_a_row_is_named():
    assert cycle_of({"tpcourse.watch": ["tpcourse.ledger"], "tpcourse.ledger.log": ["tpcourse.watch.say"]}) == [
        "ledger",
        "watch",
    ]


def test_imports_for_type_checking_alone_do_not_count():
    source = "if TYPE_CHECKING:\n    from tpcourse.linear import f"
    assert list(imports_of(source, "tpcourse.wire.ring", is_folder=False)) == []


def test_the_notebook_s_side_starts_without_torch():
    """Torch takes seconds to import; the kernel, the command line and the builder do without it."""
    found = [part for part in STARTS_WITHOUT_TORCH if f"tpcourse.{part}" in SOURCES]
    code = (
        "import sys, importlib, tpcourse\n"
        "assert 'torch' not in sys.modules, 'import tpcourse'\n"
        f"for part in {found}:\n"
        "    importlib.import_module('tpcourse.' + part)\n"
        "    if 'torch' in sys.modules: sys.exit(f'import tpcourse.{part} imports torch')\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("package", ["draw", "memory", "timeline", "train"])
def test_no_name_that_is_imported_when_asked_for_is_that_of_a_module(package):
    """Python would put the module in its place as soon as anybody imports that module."""
    names = {*importlib.import_module(f"tpcourse.{package}").__all__}
    modules = {path.stem for path in (PACKAGE / package).glob("*.py")}
    assert names and names & modules == set()
