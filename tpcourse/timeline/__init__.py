"""What each rank did when: a plain list of spans, from torch's profiler on a GPU and from the ledger on a CPU.

`record(step)` runs in each rank and gives that rank's spans; `tpcourse.draw.timeline` draws those of all ranks, and
`write_trace` makes a file of them that ui.perfetto.dev opens. `hidden` is the share of communication that cost no
time; `covered` the share of it under which the rank computed. A timeline can show the second as 1 with the first at 0.
"""

from typing import TYPE_CHECKING

from tpcourse.lazy import lazy

if TYPE_CHECKING:
    from tpcourse.timeline.chrome import trace as trace
    from tpcourse.timeline.chrome import write_trace as write_trace
    from tpcourse.timeline.kernels import communication as communication
    from tpcourse.timeline.kernels import from_profiler as from_profiler
    from tpcourse.timeline.recorder import record as record
    from tpcourse.timeline.span import LANES as LANES
    from tpcourse.timeline.span import Span as Span
    from tpcourse.timeline.span import covered as covered
    from tpcourse.timeline.span import from_ledger as from_ledger
    from tpcourse.timeline.span import hidden as hidden
    from tpcourse.timeline.span import joined as joined
    from tpcourse.timeline.span import spans_of as spans_of

_HOME = {
    "LANES": "span", "Span": "span", "communication": "kernels", "covered": "span", "from_ledger": "span",
    "from_profiler": "kernels", "hidden": "span", "joined": "span", "record": "recorder", "spans_of": "span",
    "trace": "chrome", "write_trace": "chrome",
}  # fmt: skip
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
