"""Exercise `parallel_attention(x, q_weight, kv_weight, out_weight, out_bias, tp, shared)`: cut by heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05 import bias, common
from tpcourse.check.lesson05.given import Given, Inputs, arguments, cut, whole
from tpcourse.check.misconceptions import Misconception, by_fault, by_outputs, returns
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

SIZES = {2: (2, 4, 5, 4, 3), 3: (2, 5, 7, 3, 4), 4: (3, 4, 7, 8, 2)}
NAMES = ("B", "T", "D", "H", "K")
SHARED = {2: ((0, 1),), 3: ((0, 1, 2),), 4: ((0, 1), (2, 3))}
"""Places in the group whose query heads read the same K and V head: 1 of these heads at 2 and 3 ranks, 2 at 4."""


def cases(world_size: int) -> list[Case]:
    """Fewer K and V heads than ranks in every group."""
    found = []
    for p in group_sizes(world_size):
        members = one_group(p, world_size).members
        shared = tuple(tuple(members[place] for place in part) for part in SHARED[p])
        found.append(Case(members, {"tp": (members,), "shared": shared}, dict(zip(NAMES, SIZES[p], strict=True))))
    return found


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Query heads and the columns of the output's weight cut; a K and V head for each group that shares it."""
    B, T, D, H, K = case.sizes.values()
    p, kv = case.p, {}
    for part in SHARED[p]:
        kv.update(dict.fromkeys(part, Given(0.5 * nonzero(generator, 2 * K, D))))
    return arguments(
        x=whole(nonzero(generator, B, T, D), p),
        q_weight=cut(0.5 * nonzero(generator, H * K, D), p, 0),
        kv_weight=[kv[rank] for rank in range(p)],
        out_weight=cut(nonzero(generator, D, H * K), p, 1),
        out_bias=whole(nonzero(generator, D), p),
        dy=whole(nonzero(generator, B, T, D), p, leaf=False),
    )


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """Attention of one device, all heads at once."""
    from tpcourse.check.lesson05.devices import on_one_device

    every = Given(np.concatenate([inputs[part[0]]["kv_weight"].array for part in SHARED[case.p]]))
    K, H = case.sizes["K"], case.sizes["H"]

    def attention(x: Any, q_weight: Any, kv_weight: Any, out_weight: Any, out_bias: Any) -> Any:
        q = (x @ q_weight.T).unflatten(-1, (H, K))
        kv = (x @ kv_weight.T).unflatten(-1, (-1, 2, K)).repeat_interleave(H // len(SHARED[case.p]), 2)
        return _heads(q, kv[..., 0, :], kv[..., 1, :]).flatten(2) @ out_weight.T + out_bias

    merged = [{**share, "kv_weight": every} for share in inputs]
    found = on_one_device(merged, attention, {"q_weight": 0, "out_weight": 1})
    for number, part in enumerate(SHARED[case.p]):
        for rank in part:
            found[rank][3] = found[rank][3][2 * K * number : 2 * K * (number + 1)]
    return found


def _heads(q: Any, k: Any, v: Any, scale: float = 0.0, causal: bool = True) -> Any:
    """Attention of each head, written out. Shapes: [B, T, H, K] each -> [B, T, H, K]."""
    import torch

    T, K = q.shape[1], q.shape[3]
    scores = torch.einsum("bthk,bshk->bhts", q, k) * (scale or K**-0.5)
    later = torch.ones(T, T).triu(1).bool() if causal else torch.zeros(T, T).bool()
    return torch.einsum("bhts,bshk->bthk", scores.masked_fill(later, float("-inf")).softmax(-1), v)


def budget(case: Case, inputs: Inputs) -> Budget:
    """y and dx over tp, the gradient of the shared weight over the ranks that share it."""
    size, shared = inputs[0]["x"].array.size, inputs[0]["kv_weight"].array.size
    return common.rules(tp=common.Sums(2, 2 * size, forward=size), shared=common.Sums(1, shared, forward=0))


def played(summed: Any = ("x", "kv_weight"), everywhere: bool = False, width: str = "K", **options: Any) -> Any:
    """Attention by heads with one thing different."""

    def way(evidence: Evidence) -> list[Any]:
        from tpcourse.check.lesson05 import devices

        sizes = evidence.case.sizes
        of = {"K": sizes["K"], "D": sizes["D"], "one": 1, "HK": sizes["K"] * sizes["H"]}
        of["local"] = of["HK"] // evidence.p

        def forward(ranks: list[Any]) -> list[Any]:
            heads = {"scale": of[width] ** -0.5, "causal": options.get("causal", True)}
            projected = _projected(ranks, SHARED[evidence.p], options)
            ys = [_on_one_rank(r, *qkv, **heads) for r, qkv in zip(ranks, projected, strict=True)]
            ys = bias.added(ys, ranks, "out_bias", options.get("inside", "no"))
            ys = getattr(devices, options.get("leave", "sum_copy"))(ys) if options.get("leave", "yes") else ys
            return bias.added(ys, ranks, "out_bias", "no" if "inside" in options else "all")

        groups = {} if everywhere else {"kv_weight": SHARED[evidence.p]}
        return devices.on_ranks(evidence.inputs, forward, summed, groups)

    return way


def _projected(ranks: list[dict[str, Any]], shared: Any, options: dict[str, Any]) -> list[Any]:
    """Each rank's q, k and v; with x through a copy for "q" or "all" of them, a copy behind k and v, or v first."""
    from tpcourse.check.lesson05 import devices

    xs = [r["x"] for r in ranks]
    copied = devices.copy_sum(xs) if options.get("copied") else xs
    qs = [x @ r["q_weight"].T for x, r in zip(copied, ranks, strict=True)]
    kvs = [x @ r["kv_weight"].T for x, r in zip(xs if options.get("copied") == "q" else copied, ranks, strict=True)]
    for part in shared if options.get("behind") else ():
        for rank, kv in zip(part, devices.copy_sum([kvs[rank] for rank in part]), strict=True):
            kvs[rank] = kv
    pairs = [kv.chunk(2, -1)[:: -1 if options.get("exchanged") else 1] for kv in kvs]
    return [(q, *pair) for q, pair in zip(qs, pairs, strict=True)]


def _on_one_rank(rank: dict[str, Any], q: Any, k: Any, v: Any, **options: Any) -> Any:
    """What a rank's heads add to y."""
    q = q.unflatten(-1, (-1, k.shape[-1]))
    k, v = (t[:, :, None].expand_as(q) for t in (k, v))
    return _heads(q, k, v, **options).flatten(2) @ rank["out_weight"].T


PLACE = "Ranks hold x and kv_weight alike, so these are what a copy belongs to, in front of the product."
BEHIND = [returns(played((), copied=copied, behind=True)) for copied in ("", "q")]
EXERCISE = Exercise(
    name="parallel_attention",
    values="y is whole on every rank; dx and all gradients of weights are those of one device, shared heads too",
    communication="three all_reduce: y in forward; dx, and dkv_weight over the ranks that share it, in backward",
    cases=cases,
    free=("B", "T", "D"),
    make=make,
    expected=expected,
    budget=budget,
    probe=common.PROBE,
    misconceptions=(
        *common.COMMON,
        common.by_playing(
            "shared heads not summed",
            "y and dx are right, and dkv_weight is partial: each rank has the gradient of its own query heads only, "
            "and copies of the shared weight would drift apart.",
            "A replicated weight enters work that differs from rank to rank: `copy_sum(kv_weight, group=shared)`.",
            played(("x",)),
        ),
        common.by_playing(
            "shared heads summed over all ranks",
            "dkv_weight is added up over all of `tp`, and ranks outside `shared` hold another K and V head. Right as "
            "long as all ranks share one.",
            "Add up over the ranks that hold the same head: `group=shared`.",
            played(everywhere=True),
        ),
        by_fault(
            "shared heads over tp",
            "group",
            "The gradient of kv_weight is added up over the wrong group, which happens to have the same ranks here.",
            "y and dx over `tp`, kv_weight over `shared`.",
        ),
        common.by_playing(
            "dx not summed",
            "y is right, and dx is short by the other ranks' heads: x entered p different products.",
            "`copy_sum(x, group=tp)` in front of Q, K and V.",
            played(("kv_weight",)),
            played(()),
        ),
        common.by_call(
            "heads gathered",
            common.gathers,
            "Heads are gathered in front of the output's product: its columns are cut as heads are, so each rank has "
            "what its columns need.",
            "Multiply this rank's heads by its out_weight, and add up over `tp`.",
        ),
        common.by_playing(
            "scaled by another width",
            "Scores are scaled by another width than a head's: q and k are multiplied over K elements, so it is "
            "1/sqrt(K).",
            "K is `len(kv_weight) // 2`, however many heads a rank has.",
            *(played(width=width) for width in ("D", "one", "HK", "local")),
        ),
        common.by_playing(
            "not causal",
            "Tokens attend to later ones: the mask is missing.",
            "`is_causal=True`.",
            played(causal=False),
        ),
        common.by_playing(
            "not summed in forward",
            "y is partial: each rank returns what its own heads add to it.",
            "`sum_copy(partial, group=tp)` behind the output's product, then the bias.",
            played(leave=""),
        ),
        common.by_playing(
            "k and v exchanged",
            "k and v are exchanged: of the rows of kv_weight, the first K are k's, and the last K are v's.",
            "Call the halves by their names, in their order.",
            played(exchanged=True),
        ),
        Misconception(
            "copy behind the projection",
            lambda f: any(shows(f) for shows in BEHIND),
            "dx is short: the copy behind the K and V projection adds up gradients of k and v over `shared`, and x is "
            "owed more than that.",
            PLACE,
        ),
        by_outputs(
            "a copy on both sides of the projection",
            played((), copied="all", behind=True),
            "dx has the share of k and v too often: the copy behind their projection adds it up, and then x's own copy "
            "does so again.",
            PLACE,
        ),
        common.by_playing(
            "bias inside the sum",
            "y is too large by (p-1) x out_bias: each rank adds out_bias before the sum.",
            "Add it behind the sum, where it is added once.",
            played(inside="all"),
        ),
        common.by_playing(
            "bias over p inside the sum",
            "y is right, and dout_bias is p times too small: each rank put out_bias/p into the sum.",
            "Keep out_bias out of the sum, and do not scale it.",
            played(inside="1/p"),
        ),
        bias.on_one_rank(5),
        bias.summed(5),
        Misconception(
            "averaged",
            bias.averaged("out_bias"),
            "What the ranks' heads add to y is averaged: these are the terms of one sum over heads.",
            "Leave out the division by p.",
        ),
        *common.LAST,
    ),
)
