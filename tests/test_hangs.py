"""Every mistake ends with a report that names rank, operation and line; the next cell works, variables survive."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import pytest
import torch

from tpcourse.ranks import RankDied, RankError, RanksDisagree, RanksError, RanksInterrupted, RanksStuck

pytestmark = pytest.mark.stage("hangs")


@dataclass
class Mistake:
    """A cell, what it raises, and the pieces that the report's sentence has to hold."""

    cell: str
    says: tuple[str, ...]
    error: type[Exception] = RanksStuck
    or_says: tuple[str, ...] = ()  # what the sentence may speak of in place of `says`


MISTAKES = {
    "one rank skips the call": Mistake(
        """x = torch.ones(4, device=device)
if rank != 1:
    dist.all_reduce(x)""",
        ("rank 1", "all_reduce #"),
    ),
    "ranks call in another order": Mistake(
        """x = torch.ones(4, device=device)
if rank == 0:
    dist.all_reduce(x)
    dist.broadcast(x, 0)
else:
    dist.broadcast(x, 0)
    dist.all_reduce(x)""",
        ("rank 0", "all_reduce", "broadcast", "line 3"),
    ),
    "one rank calls another operation": Mistake(
        """x = torch.ones(4, device=device)
if rank == 1:
    dist.barrier()
else:
    dist.all_reduce(x)""",
        ("rank 1", "barrier", "all_reduce #", "line 3"),
    ),
    "one rank gives another shape": Mistake(
        """x = torch.ones(8 if rank == 1 else 4, device=device)
dist.all_reduce(x)
x.sum().item()""",
        ("rank 1", "all_reduce #", "[8]", "[4]", "line 2"),
    ),
    "one rank gives another dtype": Mistake(
        """x = torch.ones(4, device=device, dtype=torch.int32 if rank == 1 else torch.float32)
dist.all_reduce(x)
x.sum().item()""",
        ("rank 1", "all_reduce #", "int32", "float32", "line 2"),
    ),
    "one rank uses another group": Mistake(
        """pair = dist.new_group([0, 1], group_desc="pair")
x = torch.ones(4, device=device)
dist.all_reduce(x, group=pair if rank == 1 else world)
x.sum().item()""",
        ("rank 1", "all_reduce", "pair", "world", "line 3"),
    ),
    "a receive waits for the wrong peer": Mistake(
        """x = torch.ones(4, device=device)
if rank == 0:
    dist.send(x, 1)
elif rank == 1:
    dist.recv(x, world_size - 1 if world_size > 2 else 1 - rank)
    dist.recv(x, world_size - 1 if world_size > 2 else 1 - rank)""",
        ("rank 1", "recv", "line 5"),
    ),
    "a send that nobody receives": Mistake(
        """x = torch.ones(4, device=device)
if rank == 0:
    dist.send(x, 1)""",
        ("rank 0", "send", "rank 1", "line 3"),
    ),
    "a receive that nobody sends": Mistake(
        """x = torch.ones(4, device=device)
if rank == 1:
    dist.recv(x, 0)
    x.sum().item()""",
        ("rank 1", "recv", "rank 0", "line 3"),
    ),
    "every rank sends before it receives": Mistake(
        """x = torch.ones(1 << 24, device=device)
dist.send(x, (rank + 1) % world_size)
dist.recv(x, (rank - 1) % world_size)
x.sum().item()""",
        ("send #1 to rank 1", "send #1 to rank 0", "line 2"),
        RanksError,  # two NCCL ranks that both send crash the GPU's memory, or wait in what follows; gloo's wait in it
        ("recv #1", "died at line 3"),
    ),
    "two groups used crosswise": Mistake(
        """first = dist.new_group([0, 1], group_desc="first")
second = dist.new_group([0, 1], group_desc="second")
x, y = torch.ones(4, device=device), torch.ones(4, device=device)
if rank == 0:
    dist.all_reduce(x, group=first)
    x.sum().item()
    dist.all_reduce(y, group=second)
elif rank == 1:
    dist.all_reduce(y, group=second)
    y.sum().item()
    dist.all_reduce(x, group=first)""",
        ("first", "second", "line 5", "line 9"),
    ),
    "one rank raises": Mistake(
        """x = torch.ones(4, device=device)
if rank == 1:
    raise ValueError("no data on rank 1")
dist.all_reduce(x)
x.sum().item()""",
        ("rank 1", "ValueError: no data on rank 1", "line 3", "all_reduce #"),
    ),
    "one rank exits": Mistake(
        """import os
x = torch.ones(4, device=device)
if rank == 1:
    os._exit(3)
dist.all_reduce(x)
x.sum().item()""",
        ("rank 1", "exit code 3"),
        RankDied,
    ),
    "one rank is killed": Mistake(
        """import os, signal
x = torch.ones(4, device=device)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x)
x.sum().item()""",
        ("rank 1", "memory"),
        RankDied,
    ),
    "a wait inside backward": Mistake(
        """class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, dy):
        if rank != 1:
            dy = dy.contiguous()
            dist.all_reduce(dy)
            dy.sum().item()
        return dy
x = torch.ones(4, device=device, requires_grad=True)
Sum.apply(x).sum().backward()""",
        ("rank 1", "all_reduce #"),
    ),
}


TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")


@pytest.fixture(params=["gloo", pytest.param("nccl", marks=[pytest.mark.gpu, TWO_GPUS])])
def ranks(ranks_on, request):
    """Ranks with little patience, each with a variable that has to survive."""
    ranks = ranks_on(request.param)
    with ranks.patient(1.5):
        ranks.run_cell("kept = torch.full((3,), float(rank), device=device)")
        yield ranks


def next_cell_works(ranks, gone: tuple[int, ...] = ()) -> None:
    ranks.run_cell("total = torch.ones(2, device=device)\ndist.all_reduce(total)\ntotal = total.tolist()")
    assert ranks["total"] == [[float(len(ranks))] * 2] * len(ranks)
    if survivors := [rank for rank in range(len(ranks)) if rank not in gone]:
        ranks.run_cell("assert kept.tolist() == [float(rank)] * 3", targets=survivors)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_with_a_report_and_the_next_cell_works(ranks, name, capsys):
    mistake = MISTAKES[name]
    with ranks.patient(0.8), pytest.raises(mistake.error) as caught:
        ranks.run_cell(mistake.cell)
    missing = [piece for piece in mistake.says if piece not in str(caught.value)]
    assert not missing, f"the report does not say {missing}:\n{caught.value}"
    if isinstance(caught.value, RanksStuck):
        sentence = str(caught.value.report.sentence)
        assert any(piece in sentence for piece in (*mistake.says, *mistake.or_says)), sentence
        assert "/" not in sentence, "no path in a sentence"
    next_cell_works(ranks, gone=tuple(range(4)) if mistake.error is RankDied else _gone(caught.value))


def _gone(error: Exception) -> tuple[int, ...]:
    """Ranks whose variables the report declares gone (a gloo process aborts on a mismatched shape)."""
    return tuple(range(8)) if "are gone" in str(error) else ()


def test_a_rank_that_died_takes_only_its_own_variables(ranks):
    with pytest.raises(RankDied) as caught:
        ranks.run_cell("import os\nif rank == 1:\n    os._exit(1)")
    assert "variables of rank 1 are gone" in str(caught.value)
    next_cell_works(ranks, gone=(1,))


def interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def test_a_rank_that_loops_for_ever_is_stopped_by_the_interrupt_button(ranks):
    interrupt_after(1.2)
    with pytest.raises(RanksInterrupted) as caught:
        ranks.run_cell("if rank == 1:\n    while True:\n        pass\ndist.all_reduce(torch.ones(1, device=device))")
    assert "rank 1" in str(caught.value) and "line 3" in str(caught.value) or "line 2" in str(caught.value)
    next_cell_works(ranks)


def test_after_an_interrupt_between_calls_the_groups_are_made_again(ranks):
    interrupt_after(1.0)
    with pytest.raises(RanksInterrupted) as caught:
        ranks.run_cell(
            "x = torch.ones(9, device=device)\nwhile True:\n"
            "    work = dist.all_reduce(x, async_op=True)\n    work.wait()"
        )
    assert "The groups were made again; every rank kept its variables." in str(caught.value)
    next_cell_works(ranks)


def test_a_rank_that_holds_the_interpreter_in_c_is_replaced_after_an_interrupt(ranks):
    interrupt_after(2.0)
    with pytest.raises(RanksInterrupted) as caught:
        ranks.run_cell("if rank == 1:\n    sum(range(10**13))")
    assert "variables of rank 1 are gone" in str(caught.value)
    next_cell_works(ranks, gone=(1,))


def test_a_rank_that_computes_for_long_while_others_wait_is_no_hang(ranks):
    """It computes for longer than the patience lasts."""
    cell = """import time
end = time.monotonic() + 5
while rank == 1 and time.monotonic() < end:
    sum(range(1000))
x = torch.ones(2, device=device)
dist.all_reduce(x)
x = x.tolist()"""
    with ranks.patient(3):
        ranks.run_cell(cell)
    assert ranks["x"] == [[float(len(ranks))] * 2] * len(ranks)


def test_a_slow_rank_that_arrives_in_time_is_no_hang(ranks):
    cell = "import time\ntime.sleep(1.0 if rank == 1 else 0)\ndist.all_reduce(torch.ones(2, device=device))"
    with ranks.patient(5):
        ranks.run_cell(cell)


def test_ranks_that_sleep_without_waiting_for_each_other_are_no_hang(ranks):
    ranks.run_cell("import time\ntime.sleep(2.0)")


def test_a_rank_that_raises_alone_shows_its_error_and_line(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run_cell("if rank == 1:\n    1 / 0")
    assert "rank 1 raised ZeroDivisionError: division by zero" in str(caught.value)
    assert "line 2: 1 / 0" in str(caught.value)
    next_cell_works(ranks)


def test_sub_groups_and_meshes_work_again_after_a_hang(ranks):
    with ranks.patient(60):  # ranks import for long, one after the other
        ranks.run_cell(
            "from torch.distributed.device_mesh import init_device_mesh\n"
            "mesh = init_device_mesh(device.type, (world_size // 2, 2), mesh_dim_names=('dp', 'tp'))\n"
            "pair = dist.new_group([0, 1], group_desc='pair')"
        )
    with pytest.raises(RanksStuck):
        ranks.run_cell("if rank != 1:\n    x = torch.ones(1, device=device)\n    dist.all_reduce(x)\n    x.item()")
    ranks.run_cell("x = torch.ones(1, device=device)\ndist.all_reduce(x, group=mesh['tp'].get_group())\nx = x.item()")
    assert ranks["x"] == [2.0] * len(ranks)
    ranks.run_cell("if rank < 2:\n    dist.all_reduce(y := torch.ones(1, device=device), group=pair)")


HOLDERS = """from collections import namedtuple
from torch.distributed.device_mesh import init_device_mesh
from tpcourse.block import GPT, GPTConfig
class Holder: pass
Axes = namedtuple('Axes', 'dp tp')
held = Holder()
held.deep, held.axes, held.me, held.rest = {'a': [(1, world)]}, Axes(None, world), held, ('b', 2)
held.module = torch.nn.Linear(1, 1)
held.module.mesh, held.module.held = init_device_mesh(device.type, (world_size,), mesh_dim_names=('tp',)), held
model = GPT(GPTConfig(V=8, T=4, D=8, H=4, L=1), tp=world, device=device)
rest = held.rest
"""


def test_what_objects_hold_of_the_groups_is_made_again_however_deep_it_lies(ranks):
    ranks.run_cell(HOLDERS)
    with pytest.raises(RanksStuck):
        ranks.run_cell(MISTAKES["one rank calls another operation"].cell + "\nx.sum().item()")
    ranks.run_cell("""found = [held.deep['a'][0][1] is world, held.axes == (None, world), type(held.axes) is Axes]
found += [held.module.held is held, held.me is held, held.rest is rest]
dist.all_reduce(x := torch.ones(1, device=device), group=held.module.mesh.get_group('tp'))
tokens = torch.arange(4, device=device)[None]
loss = model.loss(tokens, tokens)
loss.backward()
found += [x.item() == world_size, bool(loss.isfinite())]""")
    assert ranks["found"] == [[True] * 8] * len(ranks)


def test_what_the_next_cell_shows_is_shown_by_every_rank_while_its_old_cell_still_waits(ranks, capsys):
    with ranks.patient(0.8), pytest.raises(RanksStuck):
        ranks.run_cell(MISTAKES["one rank calls another operation"].cell + "\nx.sum().item()")
    capsys.readouterr()
    ranks.run_cell("print('printed')\n40 + 2")
    ranks.run_cell("40 + 2;")
    assert capsys.readouterr().out == "all ranks: printed\nall ranks: 42\n"


def test_a_silent_mismatch_is_told_when_the_cell_ends(ranks):
    with pytest.raises((RanksDisagree, RanksStuck)) as caught:
        ranks.run_cell(
            "x = torch.ones(4, device=device)\n"
            "dist.all_reduce(x, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)\nx.sum().item()"
        )
    assert "rank 1" in str(caught.value) and "max" in str(caught.value)
    next_cell_works(ranks)
