"""What a check runs inside each rank: find the answer, call it under the ledger, hand back plain data.

The notebook judges; nothing here decides whether an answer is right.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.compare import Strange, in_words
from tpcourse.check.evidence import RAISED, RETURNED, STUBBED, Case, Outcome
from tpcourse.check.waiting import unwaited
from tpcourse.ledger import learner_line, ledger

Groups = tuple[tuple[str, tuple[int, ...]], ...]
GroupKeys = list[tuple[str, tuple[int, ...]]]
_STORE = "_tpcourse_check"  # a plain dict among the rank's names: groups in it are renewed after a hang


def namespace() -> dict[str, Any]:
    """The names of this rank's notebook cells."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        return shell.user_ns
    import __main__

    return vars(__main__)


def prepare(name: str, modules: tuple[str, ...]) -> tuple[bool, GroupKeys]:
    """Whether a cell defined the answer here, and the sub-groups of earlier checks; imports what its cases need."""
    if not defines(name):
        return False, []
    import_all(modules)
    return True, known_groups()


def defines(name: str) -> bool:
    """Whether a cell defined a function of this name here."""
    return callable(namespace().get(name))


def import_all(modules: tuple[str, ...]) -> None:
    """Import modules by name."""
    for module in modules:
        importlib.import_module(module)


def known_groups() -> GroupKeys:
    """The sub-groups that earlier checks made in this rank."""
    return list(namespace().get(_STORE, {}))


def make_groups(wanted: Groups) -> None:
    """Make sub-groups, each with its name, in the same order on every rank."""
    groups = namespace().setdefault(_STORE, {})
    for name, members in wanted:
        description = None if name == "group" else name
        groups[name, members] = dist.new_group(list(members), group_desc=description)


def attempt(token: str, function: str, *args: Any) -> Any:
    """Call a function of this module that leaves an outcome, to be known by this token."""
    _last().clear()
    _last()["token"] = token
    return globals()[function](*args)


def run_case(name: str, case: Case, arguments: dict[str, Any] | None, probe: str = "") -> Outcome | None:
    """Call the rank's function `name` with its own arguments, or let a probe call it; None on a rank outside the
    case.
    """
    rank = dist.get_rank()
    if arguments is None:
        return None
    outcome = Outcome(device=_device().type)
    _last()["outcome"] = outcome
    function = namespace()[name]
    given = {key: to_tensors(value, _device()) for key, value in arguments.items()}
    groups = [namespace()[_STORE][key, own_group(parts, rank)] for key, parts in case.groups.items()]
    if probe:
        call = importlib.import_module(f"tpcourse.check.{probe}").call
        return record(outcome, function, lambda: call(function, given, groups, outcome), given)
    outcome.borrowed = borrowed_kernel(function)
    return record(outcome, function, lambda: function(*given.values(), *groups), given)


def run_same(
    fn: Any, case: Case, arguments: list[dict[str, Any]], factors: list[list[Any]], gradients: list[str]
) -> Outcome | None:
    """Call a function for `check.same` and its backward; results, then gradients. None on a rank outside the case."""
    rank = dist.get_rank()
    if rank not in case.members:
        return None
    outcome = Outcome(device=_device().type)
    _last()["outcome"] = outcome
    place, function = case.members.index(rank), find_function(fn)
    given = {key: to_tensors(value, _device()) for key, value in arguments[place].items()}
    leaves = [given[name].requires_grad_() for name in gradients]
    group = {group_name(function): namespace()[_STORE]["group", case.members]}

    def forward_and_backward() -> list[Any]:
        output = function(*given.values(), **group)
        outputs = [output] if isinstance(output, torch.Tensor) else list(output)
        if leaves:
            backward(outputs, [to_tensors(factor, _device()) for factor in factors[place]])
        return [*outputs, *(leaf.grad for leaf in leaves)]

    return record(outcome, function, forward_and_backward, given)


def backward(outputs: list[torch.Tensor], factors: list[torch.Tensor]) -> None:
    """Backward from the outputs that have one."""
    pairs = [(y, c) for y, c in zip(outputs, factors, strict=True) if y.requires_grad and y.shape == c.shape]
    if pairs:
        torch.autograd.backward([y for y, _ in pairs], [c for _, c in pairs])


def find_function(fn: Any) -> Any:
    """A function itself, by its module and name, or by its name in this rank's cells."""
    if not isinstance(fn, str):
        return fn
    if ":" not in fn:
        return namespace()[fn]
    module, name = fn.split(":")
    return getattr(importlib.import_module(module), name)


def group_name(function: Any) -> str:
    """The parameter of a function that takes the group."""
    parameters = inspect.signature(function).parameters
    return next((name for name in ("group", "tp", "dp", "cp", "ep", "pp") if name in parameters), "group")


def record(outcome: Outcome, answer: Any, call: Any, given: dict[str, Any]) -> Outcome:
    """Call the answer under the ledger and fill in what it did; what it raises goes on, but for a stub's error."""
    before = {key: to_arrays(value) for key, value in given.items()}
    try:
        with ledger() as log:
            outcome.log = log
            result = call()
            outcome.unwaited = outcome.unwaited or unwaited(answer, outcome)  # before a copy waits
            if torch.cuda.is_available() and _device().type == "cuda":
                torch.cuda.synchronize()
    except NotImplementedError:
        outcome.state = STUBBED
        return outcome
    except Exception as error:
        outcome.state, outcome.error = RAISED, f"{type(error).__name__}: {error}"
        outcome.line = line_of(error)
        raise
    outcome.result = to_arrays(result)
    outcome.kinds = tuple((str(t.dtype).removeprefix("torch."), t.device.type) for t in tensors_in(result))
    outcome.changed = tuple(key for key, value in given.items() if not _equal(to_arrays(value), before[key]))
    outcome.aliases = tuple(key for key, value in given.items() if _share(value, result))
    outcome.state = RETURNED
    return outcome


def line_of(error: BaseException) -> str:
    """The innermost line of the learner's that an error passed: "line 3", "line 3 of cell 7", or ""."""
    at, line = error.__traceback__, ""
    while at is not None:
        line, at = learner_line(at.tb_frame) or line, at.tb_next
    return line


def last_outcome(token: str) -> Outcome | None:
    """What is known of an attempt in this rank, also when it never returned; a rank that never began has none."""
    return _last().get("outcome") if _last().get("token") == token else None


def own_group(parts: tuple[tuple[int, ...], ...], rank: int) -> tuple[int, ...]:
    """The one group of `parts` that this rank is in."""
    return next(members for members in parts if rank in members)


def to_tensors(value: Any, device: torch.device) -> Any:
    """Arrays to tensors on the rank's device, in lists too; anything else as it is."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()).to(device)
    return [to_tensors(item, device) for item in value] if isinstance(value, list) else value


def to_arrays(value: Any) -> Any:
    """Tensors to arrays, in lists and tuples too; anything that is not data becomes words for it."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()
    if isinstance(value, list | tuple):
        return [to_arrays(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else Strange(in_words(value))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors_in(item)] if isinstance(value, list | tuple) else []


def _last() -> dict[str, Any]:
    return namespace().setdefault(_STORE + "_last", {})


def _device() -> torch.device:
    return namespace().get("device", torch.device("cpu"))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


def _share(a: Any, b: Any) -> bool:
    storages = {t.untyped_storage().data_ptr() for t in tensors_in(a) if t.numel()}
    return any(t.untyped_storage().data_ptr() in storages for t in tensors_in(b) if t.numel())
