"""What `tpcourse bench link` runs as host alpha: a rank on each of two hosts, and the cable between them shaped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tpcourse.cli.bench.calls import here
from tpcourse.cli.two_hosts import ALPHA, TwoHosts, can_delay, end_with_parent

RATES = {"unshaped": None, "10 Gb/s": "10gbit", "1 Gb/s": "1gbit"}
START_S = 60


def engines(hosts: TwoHosts, folder: Path) -> Path:
    """Start a controller here and an engine on each host; returns the controller's connection file."""
    profile = ["--profile-dir", str(folder / "profile"), "--log-level", "40"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    python = [sys.executable, "-m"]
    subprocess.Popen([*python, "ipyparallel.controller", "--init", f"--ip={ALPHA}", *profile], **quiet)
    security = folder / "profile" / "security"
    end = time.monotonic() + START_S
    while not (security / "ipcontroller-engine.json").is_file() and time.monotonic() < end:
        time.sleep(0.1)
    words = [*python, "ipyparallel.engine", *profile]
    for command in (words, hosts.on_beta(*words)):
        subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)
    return security / "ipcontroller-client.json"


def measured(ranks: Any, repeats: int) -> dict[str, Any]:
    """All-reduces by size, and training steps by tokens, on the cable as it is."""
    from tpcourse.ranks.timing import time_collectives

    sizes = [4096 * 2**step for step in range(11)]
    found = ranks.run(time_collectives, sizes, ("all_reduce",), repeats=repeats)[0]
    steps = ranks.run(here, "link_steps", "measure_here", repeats)[0]
    return {"measured": [(m.p, m.num_bytes, m.seconds) for m in found], "steps": steps}


def main(repeats: int) -> None:
    """Measure every rate and print one JSON object."""
    from tpcourse import start_ranks

    end_with_parent()
    with TwoHosts() as hosts, tempfile.TemporaryDirectory() as name:
        ranks = start_ranks(2, "gloo", patience=600, cluster=engines(hosts, Path(name)))
        links = {}
        for link, rate in RATES.items():
            hosts.shape(rate)
            links[link] = measured(ranks, repeats)
        hosts.shape(None)
        model = ranks.run(here, "link_steps", "model")[0]
        print(json.dumps({"links": links, "model": model, "has_netem": can_delay()}), flush=True)
        ranks.client.shutdown(hub=True, block=False)
        ranks.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]))
