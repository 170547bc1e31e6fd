"""How long it takes until four ranks have finished their first all-reduce.

Ours and plain ipyparallel's alternate, each sample in a fresh Python process. Imports before the call do not count.
"""

from statistics import median

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.fresh import fresh, progress

OURS, PLAIN = "tpcourse.cli.bench.start_ours", "tpcourse.cli.bench.start_plain"


def measure(repeats: int | None) -> Result:
    """Medians in seconds: ours alone, plain, ours with the server already there, the same call again."""
    from tpcourse.ranks import preload_server

    repeats = repeats or 5
    samples: dict[str, list[float]] = {"ours_s": [], "plain_s": [], "server_s": [], "again_s": []}
    for sample in range(repeats):
        progress(f"start: sample {sample + 1} of {repeats}")
        ours = fresh(OURS)
        samples["ours_s"].append(ours["first_s"])
        samples["again_s"].append(ours["again_s"])
        samples["plain_s"].append(fresh(PLAIN)["first_s"])
    with preload_server():
        fresh(OURS)                     # the server has finished its imports after this
        samples["server_s"] += [fresh(OURS)["first_s"] for _ in range(repeats)]
    return summary(samples)


def summary(samples: dict[str, list[float]]) -> Result:
    """The table and the figures, `ratio` = ours / plain."""
    names = {
        "ours_s": "start_ranks(4)",
        "plain_s": "plain ipyparallel Cluster(n=4)",
        "server_s": "start_ranks(4), server already there",
        "again_s": "start_ranks(4) again in one kernel",
    }
    rows: list[tuple[object, ...]] = [
        (text, median(samples[name]), min(samples[name]), max(samples[name])) for name, text in names.items()
    ]
    ratio = median(samples["ours_s"]) / median(samples["plain_s"])
    rows.append(("ours / plain", ratio, "", ""))
    medians = {name.replace("_s", "_median_s"): median(values) for name, values in samples.items()}
    return Result(("to the first all-reduce", "median s", "min", "max"), rows, {"ratio": ratio, **medians, **samples})
