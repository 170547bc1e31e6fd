"""What each rank runs for `tpcourse bench data`: one training step, with our buckets and with torch's, in one process.

All variants train the same GPT on the same text. `median_seconds` runs them in random order and takes the slowest rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

Call = Callable[[], object]
FIRST_MB = 1.0


@dataclass(frozen=True)
class Sizes:
    """The model (V is 256 bytes), the sequences of a rank, and the buckets to try in MB; 0 is one bucket of all.

    `ddp_mb` is torch's bucket; None leaves torch its default, 25 MiB and a first bucket of 1 MiB.
    """

    D: int
    H: int
    L: int
    T: int
    sequences: int
    buckets_mb: tuple[float, ...]
    usual_mb: float
    ddp_mb: float | None = None

    @property
    def first_mb(self) -> float:
        """The first bucket, for any size of the others."""
        return min(FIRST_MB, min(size for size in self.buckets_mb if size))


ON_GPU = Sizes(D=1024, H=16, L=28, T=1024, sequences=16, buckets_mb=(1, 5, 10, 25, 50, 100, 200, 0), usual_mb=25)
ON_CPU = Sizes(D=64, H=4, L=4, T=32, sequences=4, buckets_mb=(0.05, 0.1, 0.25, 0.5, 0), usual_mb=0.25, ddp_mb=0.25)


def measure_here(repeats: int) -> dict[str, Any]:
    """Runs in the rank: milliseconds of a step by variant, and of its communication alone."""
    from tpcourse.ranks.timing import device_here, median_seconds

    device = device_here()
    sizes = ON_GPU if device.type == "cuda" else ON_CPU
    bench = Bench(sizes, device)
    calls, before = bench.variants()
    seconds = median_seconds(calls, repeats=repeats, in_a_row=2, before=before)
    ms = {name: 1e3 * value for name, value in seconds.items()}
    return {"sizes": asdict(sizes), "ms": ms, "waited_ms": bench.waited_ms(repeats), **bench.facts()}


class Bench:
    """Three copies of the model: ours, torch's DDP, and torch's with gradients as views of its buckets."""

    def __init__(self, sizes: Sizes, device: Any) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from tpcourse.train import batch, source_tokens

        self.sizes, self.device, self.dtype = sizes, device, torch.bfloat16 if device.type == "cuda" else torch.float32
        self.rank, self.p = dist.get_rank(), dist.get_world_size()
        ids = [device.index] if device.type == "cuda" else None
        torchs = partial(DistributedDataParallel, device_ids=ids, bucket_cap_mb=sizes.ddp_mb)
        self.ddp = [self._step(partial(torchs, gradient_as_bucket_view=views)) for views in (False, True)]
        self.ours = self._step(self._staged)
        tokens = source_tokens(500_000).to(device)
        share = batch(tokens, sizes.sequences * self.p, sizes.T, step=0, rank=self.rank, p=self.p)
        self.x, self.y = share

    def _staged(self, model: Any) -> Any:
        import torch.distributed as dist

        from tpcourse.cli.bench.staged import Staged

        self.parallel = Staged(model, dp=dist.group.WORLD, bucket_mb=self.sizes.usual_mb)
        return model

    def _step(self, wrap: Callable[[Any], Any]) -> Call:
        """A training step of a fresh copy of the model."""
        import torch
        from torch.nn import functional

        from tpcourse.train import GPT

        torch.manual_seed(0)
        s = self.sizes
        module = GPT(T=s.T, D=s.D, H=s.H, L=s.L).to(self.device, self.dtype)
        model = wrap(module)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=self.device.type == "cuda")

        def step() -> None:
            optimizer.zero_grad()
            logits = model(self.x).flatten(0, 1)
            functional.cross_entropy(logits, self.y.flatten()).backward()
            optimizer.step()

        return step

    def variants(self) -> tuple[dict[str, Call], dict[str, Call]]:
        """Name -> what is timed, and what has to be set before it."""
        usual = self.sizes.usual_mb
        calls: dict[str, Call] = {"ddp": self.ddp[0], "ddp, views": self.ddp[1]}
        before: dict[str, Call] = {}
        stages = [(f"ours, {mb:g}", "overlap", mb) for mb in self.sizes.buckets_mb]
        stages += [(f"serial, {usual:g}", "serial", usual), (f"silent, {usual:g}", "silent", usual)]
        for name, stage, mb in stages:
            calls[name] = self.ours
            before[name] = partial(self._set, stage, mb)
        for mb in self.sizes.buckets_mb:
            calls[f"wire, {mb:g}"] = self._communicate
            before[f"wire, {mb:g}"] = partial(self._set, "overlap", mb)
        return calls, before

    def _set(self, stage: str, mb: float) -> None:
        self.parallel.stage = stage
        self.parallel.cut(mb or float("inf"), self.sizes.first_mb if mb else None)

    def _communicate(self) -> None:
        """A step's all-reduces and nothing else."""
        for work in [self.parallel.send(bucket) for bucket in self.parallel.buckets]:
            work.wait()

    def waited_ms(self, repeats: int) -> dict[str, float]:
        """How long backward's stream stood still for its last buckets: the median, on the rank that waits longest."""
        import torch
        import torch.distributed as dist

        found = []
        for mb in self.sizes.buckets_mb:
            self._set("overlap", mb)
            self.ours()
            self.parallel.waited_ms()
            for _ in range(repeats):
                self.ours()
            found.append(median(self.parallel.waited_ms()))
        longest = torch.tensor(found, device=self.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        return {f"{mb:g}": value for mb, value in zip(self.sizes.buckets_mb, longest.tolist(), strict=True)}

    def facts(self) -> dict[str, Any]:
        """What was averaged, and in how many calls for each size of bucket."""
        num_calls = {}
        for mb in self.sizes.buckets_mb:
            self._set("overlap", mb)
            num_calls[f"{mb:g}"] = len(self.parallel.buckets)
        return {
            "p": self.p,
            "backend": "nccl" if self.device.type == "cuda" else "gloo",
            "num_parameters": sum(weight.numel() for weight in self.parallel.weights),
            "num_bytes": self.parallel.num_bytes,
            "dtype": str(self.dtype).removeprefix("torch."),
            "num_calls": num_calls,
        }
