"""What each rank does now, as a clause for a sentence and as a row of the block."""

from collections.abc import Sequence

from tpcourse.watch.report import Row
from tpcourse.watch.views import View, World
from tpcourse.watch.words import call_text, details_text, line_text, where

LONGEST_ERROR = 120


def at(line: str | None) -> str:
    """Say " at line 12", or nothing where the line is unknown."""
    return f" at {line}" if line else ""


def error_text(view: View) -> str:
    """The first line of a rank's error, shortened."""
    text = ((view.error or "an error").strip().splitlines() or ["an error"])[0]
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 3] + "..."


def exit_text(view: View) -> str:
    """How a process ended; a SIGKILL that we did not send is most often the system out of memory."""
    text = view.exit or "its process is gone"
    return f"{text}, perhaps out of memory" if "signal 9" in text or "SIGKILL" in text else text


def doing(views: Sequence[View]) -> str:
    """Say as a clause what ranks in one state do instead of calling: "it returned at line 12"."""
    one, state = len(views) == 1, views[0].state
    who = "it" if one else "they"
    places = sorted({view.line or "" for view in views})
    place = at(places[0]) if len(places) == 1 else ""
    if all(view.is_idle for view in views):
        return f"{who} did not run this cell"
    if state == "done":
        return f"{who} returned{place or _after(views)}"
    if state == "running":
        return f"{who} {'is' if one else 'are'} still computing{place}"
    if state == "silent":
        seen = f", last seen{place}" if place else ""
        return f"{who} {'does' if one else 'do'} not answer{seen}"
    return f"{who} {'waits' if one else 'wait'}{place} in a call that is not a collective"


def _after(views: Sequence[View]) -> str:
    """Where the line of the end is unknown, the call that ranks made last: " after all_gather #6 on tp (line 8)"."""
    texts = {f" after {call_text(view.last)}{where(view.last)}" if view.last else "" for view in views}
    return texts.pop() if len(texts) == 1 else ""


def rows(world: World) -> list[Row]:
    """One row per rank: last finished, and now."""
    return [Row(rank, _finished(view), _now(world, view), view.host) for rank, view in sorted(world.views.items())]


def _finished(view: View) -> str:
    last = view.last
    if last is None:
        unheard = view.host is not None and view.state in ("silent", "dead")
        return "not known" if unheard else "nothing yet"
    earlier = " of " in last.line  # of another cell: the sentence says which, where it matters
    return ", ".join(filter(None, (call_text(last), "" if earlier else line_text(last))))


def _now(world: World, view: View) -> str:
    """Waits in a call, or the rank's state with its line."""
    events = world.waits(view.rank)
    if events:
        first = events[0]
        parts = ", ".join(filter(None, (call_text(first), details_text(first), line_text(first))))
        return f"waits in {parts}" + (f", and {len(events) - 1} more" if len(events) > 1 else "")
    if view.state == "raised":
        error = error_text(view)
        return f"raised {error if len(error) <= 40 else error.split(':')[0]}{at(view.line)}"
    if view.state == "dead":
        return f"died: {exit_text(view)}"
    if view.state == "done":
        return "did not run this cell" if view.is_idle else f"returned{at(view.line)}"
    return doing([view]).removeprefix("it ").removeprefix("is still ")
