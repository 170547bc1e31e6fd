"""A real all-reduce on ranks, in a process of its own, so that doctor ends whatever happens."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from tpcourse.cli.doctor.finding import Finding


class Probe:
    """Starts at once; `findings` waits for the answer, and ends the process when there is none in time."""

    def __init__(self, limit_s: float, module: str = "tpcourse.cli.doctor.probe") -> None:
        self.limit_s, self.begin_s = limit_s, time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def findings(self) -> Iterator[Finding]:
        """Whether ranks start, talk and agree."""
        left_s = self.limit_s - (time.monotonic() - self.begin_s)
        try:
            out, err = self.process.communicate(timeout=max(left_s, 0.1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            yield Finding("fail", "ranks", f"no all-reduce within {self.limit_s:g} s. A busy machine, or one that has "
                      "just been started, takes longer:\ntpcourse doctor --timeout 60")  # fmt: skip
            return
        if self.process.returncode != 0:
            yield Finding("fail", "ranks", "the all-reduce failed:\n" + "\n".join(err.strip().splitlines()[-5:]))
            return
        answer = json.loads(out.strip().splitlines()[-1])
        yield Finding("ok", "ranks", "{num_ranks} on {backend} started and summed in {seconds:.1f} s".format(**answer))
        yield from _cuda(answer)


def _cuda(answer: dict[str, object]) -> Iterator[Finding]:
    from tpcourse.cli.machine import cards

    if cards() and not answer["cuda"]:
        yield Finding("warn", "torch", "there are GPUs, and this torch cannot use them: it is built for the CPU, "
                      "or for a later driver")  # fmt: skip


def total() -> tuple[float, bool]:
    """In a rank: all-reduce a one, and say whether torch sees CUDA."""
    import torch
    import torch.distributed as dist

    from tpcourse.ranks.timing import device_here

    one = torch.ones(1, device=device_here())
    dist.all_reduce(one)
    return one.item(), torch.cuda.is_available()


def main() -> None:
    """Start the ranks that `start_ranks()` gives here, sum, and print the answer."""
    from tpcourse import start_ranks

    os.environ.pop("TPCOURSE_SERVER", None)
    begin_s = time.monotonic()
    ranks = start_ranks()
    results = ranks.run(total)
    seconds = time.monotonic() - begin_s
    wrong = [value for value, _ in results if value != len(ranks)]
    if wrong:
        sys.exit(f"the sum of ones over {len(ranks)} ranks came out as {wrong[0]}")
    cuda = all(sees for _, sees in results)
    print(json.dumps({"num_ranks": len(ranks), "backend": ranks.backend, "seconds": seconds, "cuda": cuda}))
    ranks.stop()


if __name__ == "__main__":
    main()
