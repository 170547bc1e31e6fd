"""Cores, memory, GPUs and their links."""

from collections.abc import Iterator

from tpcourse.cli import machine
from tpcourse.cli.doctor.finding import Finding

GIB = 2**30
NEEDED_BYTES = 2 * GIB      # JupyterLab, a kernel, a fork server with torch and four ranks of 0.2 GiB


def processor() -> Iterator[Finding]:
    """Cores, and what they mean for four ranks."""
    cores = machine.num_cores()
    share = "" if cores >= 4 else "; 4 ranks share them, which is slower and works"
    yield Finding("ok", "processor", f"{cores} {'core' if cores == 1 else 'cores'}, {machine.processor()}{share}")


def memory() -> Iterator[Finding]:
    """Memory free and in all."""
    free, total = machine.memory_bytes()
    text = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}"
    if free < NEEDED_BYTES:
        yield Finding("warn", "memory", f"{text}; four ranks and JupyterLab take about {NEEDED_BYTES / GIB:.0f} GiB: "
                      "close something, or start_ranks(2)")  # fmt: skip
    else:
        yield Finding("ok", "memory", text)


def graphics() -> Iterator[Finding]:
    """GPUs and links, and which of the lessons' parts need them."""
    found = machine.cards()
    if not found:
        yield Finding("ok", "GPUs", "none: ranks talk gloo on the CPU; every lesson and every check runs.\n"
                      "Not here: NCCL, and the timings of GPUs; lessons draw recorded ones instead")  # fmt: skip
        return
    names = ", ".join(sorted({f"{card.name} ({card.memory_mib / 1024:.0f} GiB)" for card in found}))
    text = f"{len(found)} x {names}, driver {found[0].driver}"
    if len(found) == 1:
        yield Finding("warn", "GPUs", f"{text}.\nNCCL needs a GPU for each rank, so ranks use gloo on the CPU. "
                      "Not here: timings of overlap")  # fmt: skip
        return
    yield Finding("ok", "GPUs", f"{text}: start_ranks() gives each an NCCL rank")
    links = machine.links()
    if links:
        fast = all(link.startswith("NV") for link in links)
        words = "NVLink" if fast else "not all NVLink: tensor parallelism will be slow across the others"
        yield Finding("ok" if fast else "warn", "links", f"from GPU 0: {', '.join(links)} ({words})")
