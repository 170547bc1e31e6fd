"""The order of a program: what lies under a product is what begins before it and is waited for behind it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ledger_help import fresh_ledger
from rig import run_ranks
from test_draw_helpers import faults, marked

from tpcourse import draw
from tpcourse.overlap import gather_product
from tpcourse.timeline import Span, covered
from tpcourse.timeline.order import order

ROWS = {"early": [("all_reduce", 0, 1), ("product", 0, 1), ("product", 1, 2)],
        "late": [("product", 0, 1), ("all_reduce", 1, 2), ("product", 2, 3)],
        "blocking": [("product", 0, 1), ("all_reduce", 1, 2), ("product", 2, 3)],
        "forgotten": [("all_reduce", 0, 2), ("product", 0, 1), ("product", 1, 2)]}  # fmt: skip


def _program(way, group):
    a, x = torch.ones(3, 3), torch.ones(4)
    if way in ("early", "forgotten"):
        work = dist.all_reduce(x, group=group, async_op=True)
    a @ a
    if way == "late":
        work = dist.all_reduce(x, group=group, async_op=True)
    if way == "blocking":
        dist.all_reduce(x, group=group)
    elif way != "forgotten":
        work.wait()
    return a @ a


def _orders(rank, group):
    with fresh_ledger():
        found = {way: [tuple(span[2:]) for span in order(_program, way, group)] for way in ROWS}
        dist.barrier(group)
    return found


def test_a_call_lasts_from_where_it_begins_to_where_it_is_waited_for():
    assert run_ranks(_orders, 2) == [ROWS] * 2


def _backward(rank, group):
    x, weight = torch.randn(1, 4, 5).requires_grad_(), torch.randn(3, 5).requires_grad_()
    with fresh_ledger():
        y = gather_product(x, weight, tp=group, form="serial", regather=True)
        spans = order(y.sum().backward)
        return [span.name for span in spans], covered(spans)


def test_backward_is_followed_too():
    names = ["all_gather", "product", "reduce_scatter", "product"]
    found = run_ranks(_backward, 2)
    assert [sorted(row) for row, _ in found] == [sorted(names)] * 2
    assert [shares for _, shares in found] == [{0: 1.0}, {1: 1.0}]


SPANS = [Span(rank, lane, name, begin, begin + 1) for rank in (0, 1) for lane, name, begin in (
    ("compute", "product", 0), ("communication", "send", 0), ("compute", "product", 1))]  # fmt: skip


def test_the_picture_of_an_order_has_no_clock():
    ax = draw.order([SPANS[:3], SPANS[3:]])
    assert ax.get_xlabel() == "the order of the program" and list(ax.get_xticks()) == []
    assert len(marked(ax, "compute")) == 4 and len(marked(ax, "communication")) == 2
    assert faults(ax) == []


def test_timelines_share_one_scale_and_each_has_its_name():
    slow = [span._replace(begin_s=2 * span.begin_s, end_s=2 * span.end_s) for span in SPANS]
    ax = draw.timelines({"fast": (SPANS, 0.5), "none": ([], None), "slow": (slow, None)}, "both")
    first, second = ax.child_axes
    assert first.get_xlim() == second.get_xlim() and first.get_xlim()[1] >= 4000
    assert first.get_title(loc="left").startswith("fast: ") and first.get_title(loc="left").endswith("E = 0.50")
    assert second.get_title(loc="left").startswith("slow: ") and ax.get_title(loc="left") == "both"


def test_timelines_without_a_recorded_run_are_one_line_that_says_so():
    ax = draw.timelines({"ring": ([], None)}, "gather + product")
    assert ax.get_title(loc="left").startswith("No run on GPUs is recorded") and not ax.child_axes
