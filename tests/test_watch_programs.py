"""Random programmes with one random fault: the report names the faulty rank, and never a fault where there is none."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from test_watch_simulator import Call, Machine, grid

from tpcourse.watch import Report, diagnose, disagreements

Programmes = list[list[Call]]

COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "barrier")
FAULTS = ("skip", "swap", "dtype", "shape", "operation", "group", "peer", "root", "twice", "raise", "die")
RUNS = 25


def collective(chance: random.Random, axis: str, line: int, group: tuple[int, ...]) -> Call:
    """One collective with a size of its own."""
    op = chance.choice(COLLECTIVES)
    if op == "barrier":
        return Call(op, line, axis, group, shape=(), dtype="")
    root = group[0] if op == "broadcast" else None
    reduction = "sum" if op == "all_reduce" else None
    return Call(op, line, axis, group, root, (chance.choice((2, 4, 6)),), reduction=reduction)


def grid_programmes(chance: random.Random, ranks: int) -> Programmes:
    """Every rank makes the same calls, on its own groups of a grid."""
    calls = []
    for line in range(1, chance.randint(3, 9)):
        call = collective(chance, chance.choice(("world", "tp", "dp")), line, (0,))
        calls.append(replace(call, op="all_reduce", reduction="sum", peer=None) if call.op == "broadcast" else call)
    return [[grid(call, rank, 2, ranks) for call in calls] for rank in range(ranks)]


def mixed_programmes(chance: random.Random, ranks: int) -> Programmes:
    """Collectives on groups of any ranks and messages between any two, in one order for all."""
    programmes: Programmes = [[] for _ in range(ranks)]
    for line in range(1, chance.randint(3, 12)):
        group = tuple(sorted(chance.sample(range(ranks), chance.randint(2, ranks))))
        if chance.random() < 0.5:
            axis = "world" if len(group) == ranks else "group " + ",".join(map(str, group))
            call = collective(chance, axis, line, group)
            for rank in group:
                programmes[rank].append(call)
        else:
            source, target = chance.sample(group, 2)
            programmes[source].append(Call("send", line, "world", tuple(range(ranks)), target))
            programmes[target].append(Call("recv", line, "world", tuple(range(ranks)), source))
    return programmes


def mutated(chance: random.Random, programmes: Programmes, fault: str) -> tuple[int, Programmes] | None:
    """The programmes with one fault on one rank; None where that fault does not fit."""
    rank = chance.choice([r for r, calls in enumerate(programmes) if calls] or [0])
    calls = list(programmes[rank])
    if not calls:
        return None
    place = chance.randrange(len(calls))
    changed = changes(chance, calls, place, fault, len(programmes))
    if changed is None or changed == calls:
        return None
    return rank, [changed if r == rank else other for r, other in enumerate(programmes)]


def changes(chance: random.Random, calls: list[Call], place: int, fault: str, ranks: int) -> list[Call] | None:
    """One rank's calls with a fault at one place."""
    call, before, after = calls[place], calls[:place], calls[place + 1 :]
    if fault == "skip":
        return before + after
    if fault == "swap":
        return before + after[:1] + [call] + after[1:]
    if fault == "twice":
        return [*before, call, replace(call, line=call.line + 20), *after]
    if fault in ("raise", "die"):
        text = "ValueError: no" if fault == "raise" else "exit code 3"
        return [*before, Call(fault, call.line, text=text)]
    new = another(chance, call, fault, ranks)
    return None if new is None else [*before, new, *after]


def another(chance: random.Random, call: Call, fault: str, ranks: int) -> Call | None:
    """The call with one thing about it changed."""
    is_pair = call.op in ("send", "recv")
    if fault == "dtype" and call.dtype:
        return replace(call, dtype="int32")
    if fault == "shape" and call.shape:
        return replace(call, shape=(9,))
    if fault == "operation" and call.op in ("all_reduce", "all_gather"):
        op = "all_gather" if call.op == "all_reduce" else "all_reduce"
        return replace(call, op=op, reduction="sum" if op == "all_reduce" else None)
    if fault == "group" and not is_pair and call.axis in ("tp", "dp") and ranks > 2:
        return replace(call, axis="world", group=tuple(range(ranks)))
    if fault == "peer" and is_pair and ranks > 2:
        return replace(call, peer=chance.randrange(ranks))
    if fault == "root" and call.op == "broadcast" and call.group:
        return replace(call, peer=call.group[-1])
    return None


def named(report: Report, rank: int) -> bool:
    """Whether the report blames the rank, or names it as the one that waits where a group has only two."""
    waiting = re.search(r"while rank (\d+) waits", report.sentence)
    return rank in report.ranks or (waiting is not None and int(waiting[1]) == rank and len(report.ranks) == 1)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("make", [grid_programmes, mixed_programmes])
def test_a_programme_without_a_fault_is_never_blamed(make, ranks: int) -> None:
    for seed in range(RUNS):
        machine = Machine(make(random.Random(seed), ranks))
        assert not machine.is_stuck
        assert diagnose(machine.states()).kind == "finished"
        assert disagreements(machine.events) is None


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("make", [grid_programmes, mixed_programmes])
def test_a_slow_rank_is_called_computing_and_nothing_else(make, ranks: int) -> None:
    for seed in range(RUNS):
        chance = random.Random(seed)
        programmes = make(chance, ranks)
        slow = chance.randrange(ranks)
        place = chance.randint(0, len(programmes[slow]))
        programmes[slow] = [*programmes[slow][:place], Call("compute", 50)]
        report = diagnose(Machine(programmes).states())
        assert (report.kind, report.ranks) == ("computing", (slow,)), report.text


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("make", [grid_programmes, mixed_programmes])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_with_a_fault_is_named(fault: str, make, ranks: int) -> None:
    for seed in range(RUNS):
        chance = random.Random(seed)
        found = mutated(chance, make(chance, ranks), fault)
        if found is None:
            continue
        rank, programmes = found
        machine = Machine(programmes)
        report = diagnose(machine.states())
        if machine.is_stuck:
            assert named(report, rank), f"rank {rank}, seed {seed}\n{report}"
            assert report.kind not in ("finished", "waiting", "computing", "silent"), f"seed {seed}\n{report}"
            assert len(report.text.splitlines()) <= 15, report.text
        else:
            assert report.kind == "finished"
