"""What the ledger costs: an all-reduce of one number in a group of one, with the ledger and without.

With and without alternate, each sample in a fresh Python process; a sample is the median of 2000 calls.
"""

import json
import sys
import tempfile
import time
from statistics import median

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.fresh import fresh, progress


def measure(repeats: int | None) -> Result:
    """Medians in microseconds a call."""
    repeats = repeats or 5
    samples: dict[str, list[float]] = {"bare": [], "ledger": []}
    for sample in range(repeats):
        progress(f"ledger: sample {sample + 1} of {repeats}")
        for name, values in samples.items():
            values.append(fresh("tpcourse.cli.bench.ledger", name)["call_us"])
    bare_us, ledger_us = median(samples["bare"]), median(samples["ledger"])
    rows: list[tuple[object, ...]] = [
        ("torch alone", bare_us),
        ("with the ledger", ledger_us),
        ("the ledger's share", ledger_us - bare_us),
    ]
    figures = {"added_us": ledger_us - bare_us, "bare_us": samples["bare"], "ledger_us": samples["ledger"]}
    return Result(("all-reduce of one number", "us a call"), rows, figures)


def sample(with_ledger: bool, num_calls: int = 2000) -> float:
    """The median microseconds of a call in this process."""
    import torch
    import torch.distributed as dist

    if with_ledger:
        from tpcourse.ledger import install

        install()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        number, seconds = torch.ones(1), []
        for _ in range(num_calls):
            begin_s = time.perf_counter()
            dist.all_reduce(number)
            seconds.append(time.perf_counter() - begin_s)
        dist.destroy_process_group()
    return 1e6 * median(seconds)


if __name__ == "__main__":
    print(json.dumps({"call_us": sample(sys.argv[1] == "ledger")}))
