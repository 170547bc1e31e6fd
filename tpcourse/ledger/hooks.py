"""Where the ledger listens: every `c10d::` operator, every wait, and coalescing.

Each operator gets a kernel at the dispatch key BackendSelect, which comes after autograd and before backends.
It sees `torch.distributed`, functional collectives, DTensor and DDP's reducer, in every thread; `redispatch`
lets go of the GIL, so that other threads can read the ledger while the call is stuck.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from tpcourse.ledger.calls import SPECS, Spec
from tpcourse.ledger.record import Call, Recorder


class Hooks:
    """The ledger's hold on torch; `remove` lets go."""

    def __init__(self, recorder: Recorder) -> None:
        import torch
        import torch.distributed as dist

        self._libraries = [torch.library.Library(name, "IMPL") for name in ("c10d", "_c10d_functional")]
        self._after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self._recorder, self._unbox = recorder, dist.Work.unbox
        for name, spec in SPECS.items():
            if hasattr(torch.ops.c10d, name):
                kernel = self._kernel(spec, getattr(torch.ops.c10d, name).default)
                self._libraries[0].impl(name, kernel, "BackendSelect", with_keyset=True)
        kernel = self._wait_tensor(torch.ops._c10d_functional.wait_tensor.default)
        self._libraries[1].impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)
        self._originals: list[tuple[Any, str, Any]] = []
        self._replace(dist.Work, "wait", self._wait)
        self._replace(dist.ProcessGroup, "_start_coalescing", self._start_coalescing)
        self._replace(dist.ProcessGroup, "_end_coalescing", self._end_coalescing)
        if torch.cuda.is_available():
            self._replace(torch.cuda.CUDAGraph, "capture_begin", functools.partial(self._capture, step=1))
            self._replace(torch.cuda.CUDAGraph, "capture_end", functools.partial(self._capture, step=-1))

    def remove(self) -> None:
        """Take every hook out again."""
        for library in self._libraries:
            library._destroy()
        for owner, name, original in self._originals:
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            self._originals.append((owner, name, original))
            setattr(owner, name, functools.update_wrapper(make(original), original))

    def _kernel(self, spec: Spec, operator: Any) -> Callable[..., Any]:
        recorder, after, redispatch = self._recorder, self._after, operator.redispatch
        names = [argument.name for argument in operator._schema.arguments]
        group_at = names.index("process_group")
        async_at = next((at for at, name in enumerate(names) if name in ("async_op", "asyncOp")), None)

        def kernel(keys: Any, *args: Any) -> Any:
            is_async = None if async_at is None else args[async_at] if len(args) > async_at else True
            call = recorder.begin(spec, args, args[group_at], is_async)
            if call is None:
                return redispatch(keys & after, *args)
            try:
                out = redispatch(keys & after, *args)
            except BaseException:
                recorder.leave(call)
                raise
            self._returned(call, out)
            return out

        return kernel

    def _returned(self, call: Call, out: Any) -> None:
        try:
            boxed = out[-1] if isinstance(out, (tuple, list)) and out else out
            work = None if boxed is None or isinstance(boxed, (tuple, list)) else self._unbox(boxed)
            if call.is_device and self._recorder.pending.captures:
                self._recorder.leave(call)
                self._recorder.finish(call)
            else:
                self._recorder.returned(call, work, _mark(call) if work is None else None)
        except Exception:
            self._recorder.leave(call)
            self._recorder.note_fault()

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.leaves_out(work):
                return True
            handle = recorder.pending.of_work(work)
            if handle is None:
                recorder.waited_late(recorder.pending.ended(work=work))
                return original(work, *args, **kwargs)
            return recorder.wait(handle, original, work, *args, **kwargs)

        return wait

    def _wait_tensor(self, operator: Any) -> Callable[..., Any]:
        recorder, after, redispatch = self._recorder, self._after, operator.redispatch

        def wait_tensor(keys: Any, tensor: Any) -> Any:
            handle = recorder.pending.of_tensor(tensor)
            if handle is None:
                recorder.waited_late(recorder.pending.ended(tensor=tensor))
                return redispatch(keys & after, tensor)
            return recorder.wait(handle, redispatch, keys & after, tensor)

        return wait_tensor

    def _start_coalescing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(group: Any, *args: Any) -> Any:
            out = original(group, *args)
            self._recorder.coalescing[threading.get_ident()] = []
            return out

        return start

    def _end_coalescing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(group: Any, *args: Any) -> Any:
            calls = self._recorder.coalescing.pop(threading.get_ident(), [])
            work = original(group, *args)
            self._recorder.ended_together(calls, work, _mark(calls[0]) if calls and work is None else None)
            return work

        return end

    def _capture(self, original: Callable[..., Any], step: int) -> Callable[..., Any]:
        pending = self._recorder.pending

        def begin_or_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            pending.captures += max(step, 0)
            try:
                return original(graph, *args, **kwargs)
            finally:
                pending.captures += min(step, 0)

        return begin_or_end


def _mark(call: Call) -> Any:
    """A mark on the current stream behind a call that gave no work (NCCL's synchronous calls)."""
    import torch

    if not call.is_device or call.event.op == "barrier":
        return None
    marker = torch.Event(call.outputs[0].device.type)
    marker.record()
    return marker
