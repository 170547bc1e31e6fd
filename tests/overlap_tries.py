"""Not for the course: on 2 GPUs, what each part of `peer` costs, and what else could be tried."""

from __future__ import annotations

import cProfile
import ctypes
import io
import pstats
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

P = 2


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, int((sys.argv[1:] or ["7"])[0])), nprocs=P)


def _rank(rank: int, folder: str, repeats: int) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/meet", world_size=P, rank=rank, device_id=device)
    from tpcourse.cli.bench.overlap_variants import allow_symmetric_memory

    allow_symmetric_memory(device)
    say(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")
    for name, do in (("copies", copies), ("cpu", cpu_costs), ("dW", parts_of_dweight)):
        try:
            do(repeats)
        except Exception as error:
            say(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    for shape in ((16384, 8192, 4096), (8192, 8192, 14336), (4096, 4096, 4096)):
        table("gather", shape, repeats)
    for shape in ((16384, 4096, 8192), (8192, 14336, 8192), (4096, 4096, 4096), (2048, 4096, 4096)):
        table("scatter", shape, repeats)
    for kind, shape in UNSEEN:
        unseen(kind, shape, repeats)
    dist.barrier()
    dist.destroy_process_group()


UNSEEN = [
    *(("gather", s) for s in ((12288, 5120, 3584), (4096, 8192, 1024), (2048, 2048, 8192), (1024, 4096, 4096),
                              (8192, 8192, 512), (512, 1024, 1024))),
    *(("scatter", s) for s in ((12288, 3584, 5120), (4096, 1024, 8192), (1024, 4096, 4096), (2048, 8192, 2048),
                               (8192, 512, 8192), (512, 1024, 1024))),
]  # fmt: skip


def unseen(kind, shape, repeats) -> None:
    """Eager and graph, back to back, of our forms at shapes that nothing was fitted to."""
    from tpcourse.cli.bench.overlap_variants import Problem, Shape
    from tpcourse.cli.bench.overlap_ways import captured
    from tpcourse.ranks.timing import median_seconds

    problem = Problem("gather_product" if kind == "gather" else "product_scatter", Shape(*shape), device())
    calls = {k: c for k, c in problem.calls().items() if k in ("product", "serial", "ring", "auto") or "peer" in k}
    graphs, _ = captured(calls)
    both = {**calls, **{f"{name}, graph": graph for name, graph in graphs.items()}}
    seconds = median_seconds(both, repeats=repeats)
    say(f"unseen {kind} {shape} " + "; ".join(f"{name} {1e3 * value:.3f}" for name, value in seconds.items()))
    for graph in graphs.values():
        graph.end()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def table(kind, shape, repeats) -> None:
    from tpcourse.cli.bench.overlap_variants import PLAIN, Problem, Shape
    from tpcourse.cli.bench.overlap_ways import captured, far_from, ms_by_way, works

    problem = Problem(f"{'gather_product' if kind == 'gather' else 'product_scatter'}", Shape(*shape), device())
    plain = problem.calls()
    calls = {name: plain[name] for name in ("product", PLAIN, "torch's fused", "peer")}
    calls |= {name: call for name, call in plain.items() if name.startswith("peer, ")}
    calls |= Gather(problem).calls() if kind == "gather" else Scatter(problem).calls()
    calls, skipped = works(calls)
    graphs, uncaptured = captured(calls)
    right = calls[PLAIN]()
    ms = ms_by_way(calls, graphs, repeats)
    say(f"\n{kind} {shape}; skipped {skipped}; not captured {uncaptured}")
    ways = list(ms)
    say(" " * 34 + "".join(f"{way:>24}" for way in ways) + "   off, elements off")
    for name, call in calls.items():
        cells = "".join(f"{ms[way][name]:24.3f}" if name in ms[way] else " " * 24 for way in ways)
        y = call()
        same = isinstance(y, torch.Tensor) and y.shape == right.shape
        off = f"{far_from(y, right):.1e} {(y != right).float().mean().item():.3f}" if same else ""
        say(f"{name:34}{cells}   {off}")
    for graph in graphs.values():
        graph.end()


def device():
    return torch.device("cuda", torch.cuda.current_device())


class Gather:
    """Ways to gather and multiply, put together from parts; y is [M, N]."""

    def __init__(self, problem) -> None:
        from tpcourse.overlap.area import Area

        self.p = problem
        self.m, self.rank = len(problem.x), dist.get_rank()
        self.other = 1 - self.rank
        self.area = Area(dist.group.WORLD, device(), 2 * problem.x.nbytes, [self.other])
        self.second = torch.cuda.Stream()
        self.place = [slice(0, self.m), slice(self.m, 2 * self.m)]

    def calls(self):
        engine = {
            "push, kept by the copy engine": partial(self.run, keep="engine"),
            "push, kept by engine, two streams": partial(self.run, keep="engine", two=True),
        }
        return {
            **(engine if _has_engine else {}),
            "halves, nothing sent": partial(self.run, sends=False),
            "halves, two streams, nothing sent": partial(self.run, sends=False, two=True),
            "halves beside a push, no signal": partial(self.run, signals=False),
            "push": self.run,
            "push, two streams": partial(self.run, two=True),
            "push, kept": partial(self.run, keep="copy_"),
            "push, kept, two streams": partial(self.run, keep="copy_", two=True),
            "push, kept behind": partial(self.run, keep="behind"),
            "push, kept behind, two streams": partial(self.run, keep="behind", two=True),
            "pull": self.pull,
            "pull, two streams": partial(self.pull, two=True),
        }

    def run(self, sends=True, signals=True, two=False, keep=""):
        x, matrix = self.p.x, self.p.matrix
        y = x.new_empty(2 * self.m, matrix.shape[1])
        kept = torch.empty_like(x) if keep else None
        slot = self.area.next_slot(x.dtype, x.numel())
        come = slot.block(self.rank, self.other, x.shape)
        now = torch.cuda.current_stream()
        if sends:
            with slot.beside():
                if signals:
                    slot.wait_free(self.other)
                slot.block(self.other, self.rank, x.shape).copy_(x)
                if signals:
                    slot.put(self.other, 0)
        self.second.wait_stream(now)
        torch.mm(x, matrix, out=y[self.place[self.rank]])
        there = self.second if two else now
        with torch.cuda.stream(there):
            if sends and signals:
                slot.wait(self.other, 0)
            if keep in ("copy_", "engine"):
                self.area.stream.wait_stream(there)
                with torch.cuda.stream(self.area.stream):
                    kept.copy_(come) if keep == "copy_" else by_engine(kept, come, self.area.stream)
            torch.mm(come if sends else self.p.whole[self.place[self.other]], matrix, out=y[self.place[self.other]])
            if keep == "behind":
                kept.copy_(come)
        now.wait_stream(self.second)
        if sends:
            slot.behind_copies()
        if sends and signals:
            slot.free(self.other)
        return y

    def pull(self, two=False):
        """x is copied into shared memory, and pulled from there to where backward needs it."""
        x, matrix = self.p.x, self.p.matrix
        y, kept = x.new_empty(2 * self.m, matrix.shape[1]), torch.empty_like(x)
        slot = self.area.next_slot(x.dtype, x.numel())
        now = torch.cuda.current_stream()
        slot.wait_free(self.other)
        slot.block(self.rank, 0, x.shape).copy_(x)
        slot.put(self.other, 0)
        with slot.beside():
            slot.wait(self.other, 0)
            kept.copy_(slot.block(self.other, 0, x.shape))
            slot.free(self.other)
        self.second.wait_stream(now)
        torch.mm(x, matrix, out=y[self.place[self.rank]])
        there = self.second if two else now
        with torch.cuda.stream(there):
            there.wait_stream(self.area.stream)
            torch.mm(kept, matrix, out=y[self.place[self.other]])
        now.wait_stream(self.second)
        return y


class Scatter:
    """Ways to multiply and scatter; y is [M / 2, N]."""

    def __init__(self, problem) -> None:
        from tpcourse.overlap.area import Area

        self.p, self.rank = problem, dist.get_rank()
        self.other, self.m = 1 - self.rank, len(problem.x) // 2
        self.area = Area(dist.group.WORLD, device(), self.m * problem.shape.N * 2, [self.other])
        self.second = torch.cuda.Stream()
        self.rows = [problem.x[: self.m], problem.x[self.m :]]

    def calls(self):
        made = {f"{n} pieces, two streams": partial(self.run, n, two=True) for n in (2, 4)}
        return {
            **{f"products in {n} pieces, nothing sent": partial(self.run, n, sends=False) for n in (1, 2)},
            **made,
            "1 piece, own half in 2": self.uneven,
        }

    def run(self, n, two=False, sends=True):
        matrix, now = self.p.matrix, torch.cuda.current_stream()
        y = self.p.x.new_empty(self.m, matrix.shape[1])
        slot = self.area.next_slot(y.dtype, y.numel())
        sums, theirs = (slot.block(rank, 0, y.shape) for rank in (self.rank, self.other))
        if sends:
            slot.wait_free(self.other)
        slot.follow()
        self.second.wait_stream(now)
        streams = [self.second if two and k % 2 else now for k in range(n)]
        for k, (block, into) in enumerate(zip(self.rows[self.other].chunk(n), sums.chunk(n), strict=True)):
            with torch.cuda.stream(streams[k]):
                torch.mm(block, matrix, out=into)
                if sends:
                    slot.put(self.other, k)
        for k, into in enumerate(y.chunk(n)):
            block, come = self.rows[self.rank].chunk(n)[k], theirs.chunk(n)[k]
            if sends:
                with slot.apart():
                    slot.wait(self.other, k)
                    into.copy_(come)
            with torch.cuda.stream(streams[k]):
                streams[k].wait_stream(self.area.stream)
                into.addmm_(block, matrix) if sends else torch.mm(block, matrix, out=into)
        now.wait_stream(self.second)
        if sends:
            slot.free(self.other)
        return y

    def uneven(self):
        """The other's half in one, this rank's in two: the first without waiting, added behind the second."""
        matrix, now, h = self.p.matrix, torch.cuda.current_stream(), self.m // 2
        y, spare = (self.p.x.new_empty(rows, matrix.shape[1]) for rows in (self.m, h))
        slot = self.area.next_slot(y.dtype, y.numel())
        sums, theirs = (slot.block(rank, 0, y.shape) for rank in (self.rank, self.other))
        slot.wait_free(self.other)
        slot.follow()
        torch.mm(self.rows[self.other], matrix, out=sums)
        slot.put(self.other, 0)
        with slot.apart():
            slot.wait(self.other, 0)
            y[h:].copy_(theirs[h:])
        second = torch.cuda.Event()
        second.record(self.area.stream)
        with slot.apart():
            spare.copy_(theirs[:h])
        torch.mm(self.rows[self.rank][:h], matrix, out=y[:h])
        now.wait_event(second)
        y[h:].addmm_(self.rows[self.rank][h:], matrix)
        slot.behind_copies()
        y[:h] += spare
        slot.free(self.other)
        return y


class Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("order", "src_type", "src_id", "dst_type", "dst_id")] + [
        ("flags", ctypes.c_uint)
    ]


def runtime():
    lines = Path("/proc/self/maps").read_text().splitlines()
    (path, *_) = {line.split()[-1] for line in lines if "libcudart.so" in line}
    return ctypes.CDLL(path)


def by_engine(into, block, stream) -> None:
    """cudaMemcpyBatchAsync with cudaMemcpyFlagPreferOverlapWithCompute."""
    dst, src = ((ctypes.c_void_p * 1)(t.data_ptr()) for t in (into, block))
    sizes, index = (ctypes.c_size_t * 1)(block.nbytes), (ctypes.c_size_t * 1)(0)
    attributes = (Attributes * 1)(Attributes(1, 0, 0, 0, 0, 1))
    handle = ctypes.c_void_p(stream.cuda_stream)
    one = ctypes.c_size_t(1)
    fail = [ctypes.byref(ctypes.c_size_t())] if int(torch.version.cuda.split(".")[0]) < 13 else []
    error = runtime_once().cudaMemcpyBatchAsync(dst, src, sizes, one, attributes, index, one, *fail, handle)
    if error:
        raise RuntimeError(f"cudaMemcpyBatchAsync: error {error}")


_runtime: list[ctypes.CDLL] = []
_has_engine: list[bool] = []


def runtime_once():
    if not _runtime:
        _runtime.append(runtime())
    return _runtime[0]


def copies(repeats) -> None:
    """Speed of copies: to the other GPU, from it, within this one; alone and what they do to a product beside them."""
    from tpcourse.overlap.area import Area

    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    b, y, c = torch.randn_like(a), torch.empty_like(a), torch.empty_like(a)
    area = Area(dist.group.WORLD, device(), a.nbytes, [1 - dist.get_rank()])
    there = area.handle.get_buffer(1 - dist.get_rank(), a.shape, a.dtype, 0)
    stream = torch.cuda.Stream(priority=-1)
    ways = {
        "push": lambda: there.copy_(a), "pull": lambda: c.copy_(there), "local": lambda: c.copy_(a),
        "local, engine": lambda: by_engine(c, a, stream), "nothing": lambda: None,
    }  # fmt: skip
    for name, copy in ways.items():
        c.zero_()
        try:
            alone, beside = clock(copy, stream), clock(copy, stream, lambda: torch.mm(a, b, out=y))
        except RuntimeError as error:
            say(f"{name}: {error}")
            continue
        say(f"copy of {a.nbytes / 1e6:.0f} MB, {name:14}: {alone:.3f} ms; 3 beside 2 products {beside:.3f} ms")
        if name == "local, engine":
            _has_engine.append(torch.equal(a, c))
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for copy in ways.values():
            with torch.cuda.stream(stream):
                copy()
        area.handle.put_signal(1 - dist.get_rank(), 9)
        area.handle.wait_signal(1 - dist.get_rank(), 9)
        torch.mm(a, b)
        y.addmm_(a, b)
        torch.cuda.synchronize()
    names = [event.name() for event in seen.profiler.kineto_results.events() if "CUDA" in str(event.device_type())]
    say(f"names in the profiler: {names}")


def parts_of_dweight(repeats) -> None:
    """dW = dy^T x in one product, and in parts of the tokens that are added in the epilogue; and dx in halves."""
    from tpcourse.ranks.timing import median_seconds

    for out, into, tokens in ((14336, 8192, 8192), (8192, 14336, 8192), (7168, 4096, 8192), (4096, 7168, 8192)):
        dy, x = (torch.randn(tokens, n, device="cuda").bfloat16() for n in (out, into))
        w = torch.randn(out, into, device="cuda").bfloat16()
        dx = torch.empty(tokens, into, device="cuda").bfloat16()

        def weight(n, dy=dy, x=x):
            found = None
            for a, b in zip(dy.chunk(n), x.chunk(n), strict=True):
                found = a.T @ b if found is None else found.addmm_(a.T, b)
            return found

        def copied(dy=dy, x=x, weight=weight):
            whole = torch.empty_like(x)
            whole.copy_(x)
            return weight(1, dy, whole)

        def inputs(n, dy=dy, w=w, dx=dx):
            for a, b in zip(dy.chunk(n), dx.chunk(n), strict=True):
                torch.mm(a, w, out=b)

        def batched(dy=dy, w=w, dx=dx):
            for k in (0, 1):  # two sequences, each cut in two
                a, b = (t.view(2, 2, -1, t.shape[1])[:, k] for t in (dy, dx))
                torch.bmm(a, w.expand(2, -1, -1), out=b)

        calls = {f"dW in {n}": partial(weight, n) for n in (1, 2, 4)} | {"dW in 1 behind a copy": copied}
        calls |= {f"dx in {n}": partial(inputs, n) for n in (1, 2)} | {"dx in 2, two sequences": batched}
        seconds = median_seconds(calls, repeats=repeats)
        say(f"{out} x {into}, {tokens} tokens: " + "; ".join(f"{k} {1e3 * v:.3f}" for k, v in seconds.items()))


def clock(copy, stream, product=None) -> float:
    """Milliseconds of a copy; with a product, of two products with three copies beside them."""
    found = []
    for _ in range(8):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)
        begin.record()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3 if product else 1):
                copy()
        for _ in range(2 if product else 0):
            product()
        torch.cuda.current_stream().wait_stream(stream)
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return sorted(found)[len(found) // 2]


def cpu_costs(repeats) -> None:
    """Microseconds that the CPU needs for a call of a tiny shape, forward, and forward and backward."""
    from tpcourse.overlap import gather_product, product_scatter

    group = dist.group.WORLD
    x, weight = torch.randn(1, 64, 64, device="cuda").bfloat16(), torch.randn(64, 64, device="cuda").bfloat16()
    x.requires_grad_(), weight.requires_grad_()

    def both(kernel, **options):
        y = kernel(x, weight, tp=group, **options)
        torch.autograd.grad(y, (x, weight), y.detach())

    for kernel in (gather_product, product_scatter):
        for form in ("serial", "ring", "peer", "auto"):
            for name, call in (("forward", partial(kernel, x, weight, tp=group, form=form)),
                               ("both", partial(both, kernel, form=form))):  # fmt: skip
                for _ in range(20):
                    call()
                torch.cuda.synchronize()
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(60):
                    call()
                cpu = time.perf_counter() - begin
                torch.cuda.synchronize()
                whole = time.perf_counter() - begin
                us = f"CPU {1e6 * cpu / 60:.0f} us a call, until done {1e6 * whole / 60:.0f}"
                say(f"{kernel.__name__}, {form}, {name}: {us}")
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(200):
        with torch.no_grad():
            gather_product(x, weight, tp=group, form="peer")
            product_scatter(x, weight, tp=group, form="peer")
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(22)
    say("\n".join(line for line in text.getvalue().splitlines() if line.strip())[:4000])


if __name__ == "__main__":
    main()
