"""How far a learner is in the course: a row a lesson, a square an exercise."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from tpcourse.draw.palette import EMPTY, FAINT, NORMAL, SMALL, TEXT, ink, sheet, styled

FILLS = {"passed": "#009E73", "failed": "#D55E00", "blocked": "#8A8A8A", "not started": EMPTY}
MARKS = {"passed": "✓", "failed": "✗", "blocked": "–", "not started": "·"}
STEP, SIDE = 0.42, 0.34  # inches


@styled
def progress(states: Mapping[str, Mapping[str, str]], ax: Axes | None = None) -> Axes:
    """Lesson -> exercise -> state, as `tpcourse.progress.progress()` gives it. Every state has a mark of its own.

    Raises: ValueError for a state that is none of passed, failed, blocked, not started.
    """
    unknown = {state for named in states.values() for state in named.values()} - set(FILLS)
    if unknown:
        raise ValueError(f"no state is called {', '.join(sorted(unknown))}; there are {', '.join(FILLS)}")
    most = max(map(len, states.values()), default=0)
    height = STEP * (len(states) + 1.2)
    ax = sheet(ax, "progress", max(5.6, 1.6 + STEP * most), height)
    for row, (lesson, named) in enumerate(states.items()):
        y = height - STEP * (row + 1)
        passed = sum(state == "passed" for state in named.values())
        ax.text(0.1, y + SIDE / 2, lesson, va="center", fontsize=NORMAL)
        ax.text(1.05, y + SIDE / 2, f"{passed} of {len(named)}", va="center", ha="right", fontsize=SMALL, color=FAINT)
        for place, state in enumerate(named.values()):
            _square(ax, 1.3 + STEP * place, y, state)
    legend = "    ".join(f"{mark} {state}" for state, mark in MARKS.items())
    ax.text(0.1, 0.18, legend, fontsize=SMALL, color=TEXT, va="center")
    return ax


def _square(ax: Axes, x: float, y: float, state: str) -> None:
    fill = FILLS[state]
    ax.add_patch(Rectangle((x, y), SIDE, SIDE, facecolor=fill, edgecolor=FAINT, linewidth=0.8))
    ax.text(x + SIDE / 2, y + SIDE / 2, MARKS[state], ha="center", va="center", color=ink(fill), fontsize=NORMAL)
