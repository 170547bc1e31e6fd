"""Answers to lesson 08's exercises beside the solution: right in another way, or around a rule."""

from __future__ import annotations

from exercise_help import Answers

ANSWERS = Answers("08_overlap")
solution, changed = ANSWERS.solution, ANSWERS.changed

TWO_ROOMS = changed(
    "ring_gather_product",
    ("    now = x\n", "    now, rooms = x, [torch.empty_like(x), torch.empty_like(x)]\n"),
    ("coming, works = torch.empty_like(x), []", "coming, works = rooms[step % 2], []"),
)
HALF_A_PIECE = changed(
    "ring_gather_product",
    ("        y[(r - step) % p] = linear(now, weight, bias)\n",
     "        n = len(x) // 2\n"
     "        y[(r - step) % p, :n] = now[:n] @ weight.T + bias\n"
     "        torch.addmm(bias, now[n:], weight.T, out=y[(r - step) % p, n:])\n"),
)  # fmt: skip
TURNED_ROUND = changed(
    "ring_gather_product",
    ("linear(now, weight, bias)", "(weight @ now.T).T + bias"),
)
ONE_BY_ONE = changed(
    "ring_gather_product",
    ("            works = pass_on(now, coming, tp)\n",
     "            right, left = (dist.get_global_rank(tp, (r + way) % p) for way in (1, -1))\n"
     "            works = [dist.irecv(coming, left, group=tp), dist.isend(now, right, group=tp)]\n"),
)  # fmt: skip
BY_HALVES = changed(
    "ring_product_scatter",
    ("        part = linear(pieces[(r - 1 - step) % p], weight)\n",
     "        halves = pieces[(r - 1 - step) % p].chunk(2, 1), weight.chunk(2, 1)\n"
     "        part = sum(linear(a, b) for a, b in zip(*halves))\n"),
)  # fmt: skip
BY_COLUMNS = """
def pieced_product_scatter(x, weight, num_pieces, tp):
    mine, works = [], []
    for rows in weight.chunk(num_pieces):  # [D/num_pieces, K]
        part = linear(x, rows)
        mine.append(part.new_empty(len(x) // dist.get_world_size(tp), len(rows)))
        works.append(reduce_scatter_single(mine[-1], part, group=tp, async_op=True))
    for work in works:
        work.wait()
    return torch.cat(mine, 1)
"""
LISTS = changed(
    "gathered_meanwhile",
    ("    whole = piece.new_empty(dist.get_world_size(tp) * len(piece), piece.shape[1])\n"
     "    work = all_gather_single(whole, piece, group=tp, async_op=True)\n",
     "    pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size(tp))]\n"
     "    work = dist.all_gather(pieces, piece, group=tp, async_op=True)\n"),
    ("    return whole, y", "    return torch.cat(pieces), y"),
)  # fmt: skip
WAITED_BY_A_HELPER = "def finish(works):\n    return [work.wait() for work in works]\n\n\n" + changed(
    "ring_gather_product", ("        for work in works:\n            work.wait()\n", "        finish(works)\n")
)
FUNCTIONAL = """
import torch.distributed._functional_collectives as funcol

from tpcourse import ledger

def ordered_backward(dy, x, weight, tp):
    whole = funcol.all_gather_tensor(x, 0, tp)
    part = dy @ weight
    while ledger.recent()[-1].end_s is None:  # the gather has ended when the next call begins
        pass
    dx = funcol.reduce_scatter_tensor(part, "sum", 0, tp)
    dw = dy.T @ funcol.wait_tensor(whole)
    return funcol.wait_tensor(dx), dw
"""
RIGHT = {
    "two rooms in turn": ("ring_gather_product", TWO_ROOMS),
    "two products a piece": ("ring_gather_product", HALF_A_PIECE),
    "factors turned round": ("ring_gather_product", TURNED_ROUND),
    "a receive and a send": ("ring_gather_product", ONE_BY_ONE),
    "waits in a helper": ("ring_gather_product", WAITED_BY_A_HELPER),
    "each product in two halves of K": ("ring_product_scatter", BY_HALVES),
    "cut along the weight's rows": ("pieced_product_scatter", BY_COLUMNS),
    "a list of tensors": ("gathered_meanwhile", LISTS),
    "functional collectives": ("ordered_backward", FUNCTIONAL),
}

KERNEL = """
def ring_gather_product(x, weight, bias, tp):
    from tpcourse.overlap import gather_product

    return gather_product(x, weight, bias, tp=tp, form="ring", sequence_dim=0)
"""
THE_SEND_IS_FORGOTTEN = changed(
    "ring_gather_product",
    ("        for work in works:\n            work.wait()\n", "        [w.wait() for w in works[1:]]\n"),
)
AT_THE_END = changed(
    "ring_product_scatter",
    ("        for work in works:\n            work.wait()\n", ""),
    ("    return part\n", "    for work in works:\n        work.wait()\n    return part\n"),
)
PEEKED = """
import pickle

store = dist.distributed_c10d._get_default_store()

def gathered_meanwhile(piece, x, weight, tp):
    members = dist.get_process_group_ranks(tp)
    place = f"{members} {tuple(piece.shape)} {tuple(x.shape)}"
    store.set(f"{place} {rank}", pickle.dumps(piece))
    pieces = [pickle.loads(store.get(f"{place} {other}")) for other in members]
    one = piece.new_ones(1)
    work = dist.all_gather([torch.empty_like(one) for _ in pieces], one, group=tp, async_op=True)
    y = linear(x, weight)
    work.wait()
    return torch.cat(pieces), y
"""
NO_PRODUCT = """
def gathered_meanwhile(piece, x, weight, tp):
    whole = piece.new_empty(dist.get_world_size(tp) * len(piece), piece.shape[1])
    all_gather_single(whole, piece, group=tp)
    return whole, (x[:, None] * weight).sum(-1)
"""
BY_ITS_NAME = """
import sys

def ring_gather_product(x, weight, bias, tp):
    return getattr(sys.modules["tpcourse.overlap"], "gather_product")(x, weight, bias, tp=tp, sequence_dim=0)
"""
AROUND = {
    "a product that is none": ("gathered_meanwhile", NO_PRODUCT, "times in products, and"),
    "the same by its name": ("ring_gather_product", BY_ITS_NAME, "calls a finished kernel of the course"),
    "the course's own kernel": ("ring_gather_product", KERNEL, "calls a finished kernel of the course"),
    "a send that nobody waits for": ("ring_gather_product", THE_SEND_IS_FORGOTTEN, "while a call is under way"),
    "only the last message is waited for": ("ring_product_scatter", AT_THE_END, "before anybody waited for it"),
    "pieces of others without a message": ("gathered_meanwhile", PEEKED, "bytes sent, and"),
}
