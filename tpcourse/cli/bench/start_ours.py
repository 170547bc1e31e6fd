"""One sample of `tpcourse bench start`: the course's ranks."""

import json
import time

from tpcourse import start_ranks


def total() -> float:
    """All-reduce a one: the number of ranks."""
    import torch
    import torch.distributed as dist

    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


def sample() -> float:
    """Seconds from the call to the first all-reduce finished on every rank."""
    begin_s = time.perf_counter()
    results = start_ranks(4, backend="gloo").run(total)
    seconds = time.perf_counter() - begin_s
    assert results == [4.0] * 4, results
    return seconds


if __name__ == "__main__":
    print(json.dumps({"first_s": sample(), "again_s": sample()}))
    start_ranks(4, backend="gloo").stop()
