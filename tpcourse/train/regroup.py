"""Groups that were left and made again: how what holds the old ones comes by the new ones."""

from __future__ import annotations

from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d


def renew_groups(owner: Any) -> None:
    """Put today's groups in the place of those of the same name in all that `owner` holds, however deep.

    After a hang or an interrupt the ranks leave all groups and make them again. The notebook's own variables
    (`world`, a group, a list of groups) follow by themselves; the attributes of a model or a trainer do not.
    Looks into dicts, lists, tuples, modules and objects with attributes, but not into torch's own objects.
    Raises: ValueError if a group is not there any more.
    """
    _renewed(owner, set())


def _renewed(value: Any, seen: set[int]) -> Any:
    """The value, or what takes its place; what it holds is changed in place."""
    if isinstance(value, dist.ProcessGroup):
        fresh = _today(value)
        for_ever()[id(fresh)] = fresh
        return fresh
    if id(value) in seen:
        return value
    seen.add(id(value))
    if type(value) is tuple:
        fresh = tuple(_renewed(item, seen) for item in value)
        return fresh if any(new is not old for new, old in zip(fresh, value, strict=True)) else value
    inside = value if isinstance(value, dict | list) else vars(value) if _has_attributes(value) else {}
    for key, item in list(enumerate(inside) if isinstance(inside, list) else inside.items()):
        fresh = _renewed(item, seen)
        if fresh is not item:
            inside[key] = fresh
    return value


@cache
def for_ever() -> dict[int, dist.ProcessGroup]:
    """Groups that never end. Trap: the last reference to a gloo group waits for calls that it has under way, and if
    the group was left those never end: the rank would stop wherever Python happens to throw the group away.
    """
    return {}


def _today(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The group that has this one's name now. Made again in the same order, groups get the same names again."""
    try:
        return distributed_c10d._resolve_process_group(group.group_name)
    except (RuntimeError, LookupError) as error:
        raise ValueError(
            f"group {group.group_name!r} was left and not made again: run the cell that makes it, and then the cell "
            "that makes the model"
        ) from error


def _has_attributes(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return True
    torch_s = type(value).__module__.partition(".")[0] == "torch"
    return hasattr(value, "__dict__") and not torch_s and not isinstance(value, type | ModuleType | FunctionType)
