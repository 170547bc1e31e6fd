"""Show the source of a function that a lesson runs."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any


def source_text(fn: Callable[..., Any]) -> str:
    """Source of a function or class without its decorators, after a comment that names its file.

    Raises: ValueError where Python has no source (built-in functions, text given to `exec`).
    """
    target: Any = inspect.unwrap(fn)
    try:
        text = textwrap.dedent(inspect.getsource(target))
    except (OSError, TypeError) as error:
        name = getattr(fn, "__name__", repr(fn))
        raise ValueError(f"no Python source for {name}: give a function or class written in a file or cell") from error
    first = getattr(ast.parse(text).body[0], "lineno", 1)  # of `def`, after the decorators
    return f"# {file_name(target)}\n{''.join(text.splitlines(keepends=True)[first - 1 :]).rstrip()}\n"


def file_name(target: Any) -> str:
    """The file that a reader would open: tpcourse/wire/ring.py, or "this notebook"."""
    path = Path(inspect.getsourcefile(target) or "")
    parts = target.__module__.split(".")
    if parts[0] == "__main__" or not path.exists():
        return "this notebook"
    package = path.stem == "__init__"
    return "/".join([*parts[: None if package else -1], path.name])


def show_source(fn: Callable[..., Any]) -> None:
    """Show a function's source with its file's name, in the colours of the reader's theme. Raises ValueError (see
    `source_text`)."""
    from IPython.display import display

    text = source_text(fn)
    display({"text/markdown": f"```python\n{text}```", "text/plain": text}, raw=True)
