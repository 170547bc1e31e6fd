"""Whether an answer calls a finished kernel of the course instead of writing it."""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

ALLOWED = {"exchange", "send", "receive"}
READS = {"LOAD_GLOBAL", "LOAD_NAME"}


def borrowed_kernel(function: Any, packages: tuple[str, ...] = ("tpcourse.wire",)) -> str:
    """The name of a kernel of these packages that a function is, or mentions, directly or by a helper or class of
    the notebook; "" if none.
    """
    for value in reached(function, packages):
        name = getattr(value, "__name__", "")
        package = next((package for package in packages if module_of(value).startswith(package)), "")
        if package and name not in ALLOWED:
            return f"{package}.{name}"
    return ""


def reached(value: Any, packages: tuple[str, ...] = (), seen: set[int] | None = None) -> Iterator[Any]:
    """A function or class, and what its code names of the notebook and of these packages, and so on; nobody looks
    into what torch and the course name.
    """
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    if not is_finished(value):
        named = (other for own in functions_of(value) for other in mentioned(own, packages))
        for other in named:
            yield from reached(other, packages, seen)


def is_finished(value: Any) -> bool:
    """Whether a function or class is torch's or the course's."""
    return module_of(value).startswith(("torch", "tpcourse"))


def module_of(value: Any) -> str:
    """The module in which something was defined, or ""."""
    return getattr(value, "__module__", None) or ""


def functions_of(value: Any) -> list[FunctionType]:
    """A function itself; the methods of a class, such as `forward` and `backward`."""
    if isinstance(value, FunctionType):
        return [value]
    held = vars(value).values() if isinstance(value, type) else ()
    methods = (getattr(method, "__func__", method) for method in held)  # out of a staticmethod
    return [method for method in methods if isinstance(method, FunctionType)]


def mentioned(function: FunctionType, packages: tuple[str, ...]) -> Iterator[Any]:
    """The functions that a function's code names: its globals, and attributes of the packages."""
    names, read = set(names_in(function.__code__)), set(globals_in(function.__code__))
    values = [function.__globals__[name] for name in read if name in function.__globals__]
    yield from (value for value in values if callable(value))
    values += [sys.modules[name] for name in names if name in sys.modules]  # imports inside the function
    modules = [value for value in values if isinstance(value, ModuleType) and value.__name__.startswith("tpcourse")]
    found = [module for module in modules if module.__name__.startswith(packages)]
    short = {package.rpartition(".")[2]: package for package in packages}
    inside = {short[name] for name in names & set(short) if modules} | names & set(packages)
    found += [importlib.import_module(package) for package in inside]
    yield from (getattr(module, name) for module in found for name in names if callable(getattr(module, name, None)))


def globals_in(code: CodeType) -> Iterator[str]:
    """Names of globals that code reads, inner functions too: in `dist.all_gather` that is `dist` alone."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in READS)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from globals_in(constant)


def names_in(code: CodeType) -> Iterator[str]:
    """All names that code uses, attributes and strings too, inner functions too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
        elif isinstance(constant, str):  # as in sys.modules["tpcourse.wire"]
            yield constant
