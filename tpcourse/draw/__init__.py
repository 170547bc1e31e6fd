"""Pictures of what ranks hold and send: colour = rank, hatch = communication.

Every function is pure: `(data, ax=None) -> Axes`. As the last line of a cell it shows its picture once.
Matplotlib is loaded by the first picture, not by `import tpcourse.draw`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpcourse.draw.algorithms import ALGORITHMS as ALGORITHMS
    from tpcourse.draw.algorithms import play as play
    from tpcourse.draw.bars import memory_bars as memory_bars
    from tpcourse.draw.cells import before_after as before_after
    from tpcourse.draw.cells import exchange as exchange
    from tpcourse.draw.diagram import messages as messages
    from tpcourse.draw.lanes import timeline as timeline
    from tpcourse.draw.mesh import grid as grid
    from tpcourse.draw.rounds import bands as bands
    from tpcourse.draw.rounds import steps as steps
    from tpcourse.draw.source import show_source as show_source
    from tpcourse.draw.spans import intervals as intervals
    from tpcourse.draw.stepper import collective_stepper as collective_stepper
    from tpcourse.draw.symbols import holdings as holdings

_HOME = {
    "ALGORITHMS": "algorithms", "play": "algorithms", "memory_bars": "bars", "before_after": "cells",
    "exchange": "cells", "messages": "diagram", "holdings": "symbols", "intervals": "spans",
    "timeline": "lanes", "grid": "mesh", "bands": "rounds", "steps": "rounds", "show_source": "source",
    "collective_stepper": "stepper",
}  # fmt: skip
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"tpcourse.draw has no {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
