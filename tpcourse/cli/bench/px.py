"""How long an empty `%%px` cell takes on four ranks, in a real kernel."""

import subprocess
from statistics import median, quantiles
from typing import Any

from tpcourse.cli import CommandError
from tpcourse.cli.bench import Result
from tpcourse.cli.bench.fresh import progress
from tpcourse.cli.course import share_package

CODE = """
import time
from tpcourse import start_ranks
ranks = start_ranks(4, backend="gloo")
shell, seconds = get_ipython(), []
for _ in range({warm_up} + {repeats}):
    begin_s = time.perf_counter()
    shell.run_cell_magic("px", "", "pass")
    seconds.append(time.perf_counter() - begin_s)
ranks.stop()
"""


def measure(repeats: int | None) -> Result:
    """The median over 100 cells, in milliseconds, after 10 to warm up."""
    repeats = max(repeats or 100, 2)
    share_package()
    progress(f"px: {repeats} empty cells")
    ms = [1e3 * second for second in _in_kernel(CODE.format(warm_up=10, repeats=repeats), "seconds[10:]")]
    low, high = quantiles(ms, n=20)[0], quantiles(ms, n=20)[-1]
    figures = {"median_ms": median(ms), "low_ms": low, "high_ms": high, "num_cells": repeats}
    row = ("%%px, 4 ranks", median(ms), low, high)
    return Result(("empty cell", "median ms", "5 %", "95 %"), [row], figures)


def _in_kernel(code: str, expression: str) -> Any:
    """Execute code in a fresh kernel and return the value of an expression made of literals."""
    import ast

    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
    try:
        ask = {"value": expression}
        reply = client.execute_interactive(code, user_expressions=ask, output_hook=lambda _: None, timeout=120)
        content = reply["content"]
        if content["status"] != "ok":
            raise CommandError(f"the cells failed: {content.get('ename')}: {content.get('evalue')}")
        return ast.literal_eval(content["user_expressions"]["value"]["data"]["text/plain"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
