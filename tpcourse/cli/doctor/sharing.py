"""What a machine that many people use leaves to this one: GPUs shown and free, ranks allowed."""

import os
from collections.abc import Iterator

from tpcourse.cli.doctor.finding import Finding
from tpcourse.ranks import caps
from tpcourse.ranks.devices import VARIABLE, visible
from tpcourse.ranks.nvidia import all_gpus, named


def sharing() -> Iterator[Finding]:
    """GPUs that are hidden, full or taken, and the cap on ranks; nothing where there is neither."""
    shown, gpus = visible(os.environ), all_gpus()
    usable = gpus if shown is None else named(gpus, shown)
    if gpus and shown is not None:
        yield Finding("ok", "GPUs shown", f"{len(shown)} of {len(gpus)} ({VARIABLE}={os.environ[VARIABLE]!r})")
    for text in filter(None, (gpu.trouble() for gpu in usable)):
        yield Finding("warn", "GPUs", f"{text}\nstart_ranks(devices=[...]) picks others, backend='gloo' none")
    try:
        limit = caps.cap()
    except ValueError as error:
        yield Finding("fail", "ranks allowed", str(error))
        return
    if limit is not None:
        used = sum(caps.running().values())
        text = f"{limit.ranks} a person ({limit.place}); yours running: {used}"
        full = "; none is left, so the last line of this report cannot start any" if used >= limit.ranks else ""
        yield Finding("warn" if full else "ok", "ranks allowed", text + full)
