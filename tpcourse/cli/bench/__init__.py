"""`tpcourse bench NAME`: measurements of this machine, as a table, as JSON, as a recording.

To add one: a module with `measure(repeats) -> Result`, and its line in BENCHES.
"""

import argparse
import importlib
import json
import sys
from dataclasses import dataclass, field

from tpcourse.cli import CommandError

BENCHES = {
    "start": "seconds from start_ranks(4) to the first all-reduce, ours and plain ipyparallel's",
    "px": "milliseconds for an empty %%px cell on 4 ranks",
    "ledger": "microseconds that the ledger adds to a collective",
    "data": "a data-parallel training step by size of bucket, beside torch's DistributedDataParallel",
    "tensor": "tensor parallelism: an MLP, a block and a GPT beside one device and torch's parallelize_module",
    "zero": "time and memory of ZeRO's stages beside torch's DDP, ZeroRedundancyOptimizer and fully_shard",
    "link": "a cable shaped to 10 and 1 Gb/s between two hosts: alpha, beta, tensor against data parallel",
    "overlap": "gather + product and product + scatter-sum in every form, and torch's own: what each hides",
    "profile": "a training loop on one device, TP, TP + SP and with overlap: loss, gradient norm, time, memory",
    "exposed": "what data-parallel buckets and ZeRO's third stage leave exposed of their communication, and torch's",
    "scale": "the same work on 1, 2, 4 (and 8) GPUs: bandwidth, tensor parallelism, overlap and ZeRO by their number",
    "collectives": "time and bandwidth of three collectives by size, and how well two numbers predict them",
}


@dataclass
class Result:
    """A measurement: a table for people, figures for programs. Figures are named with their units."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    figures: dict[str, object] = field(default_factory=dict)

    def table(self) -> str:
        """The rows under their column names, figures to three decimals."""
        cells = [[_text(cell) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in cells
        ]
        return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def run(args: argparse.Namespace) -> int:
    """Measure, print, and record if asked; without a name, list the names."""
    if args.name is None:
        print("\n".join(f"{name:11} {text}" for name, text in BENCHES.items()))
        return 0
    if args.name not in BENCHES:
        raise CommandError(f"there is no benchmark {args.name!r}; there are: {', '.join(BENCHES)}.")
    if args.repeats is not None and args.repeats < 1:
        raise CommandError(f"--repeats {args.repeats} measures nothing; give 1 or more.")
    result = importlib.import_module(f"tpcourse.cli.bench.{args.name}").measure(args.repeats)
    print(result.table())
    if args.record:
        from tpcourse.cli.bench.record import record

        print(f"recorded in {record(args.name, result)}", file=sys.stderr)
    if args.json:
        print(json.dumps({"bench": args.name, **result.figures}))
    return 0


def _text(cell: object) -> str:
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
