"""Exercise `uneven_tokens(x, mlp, target, group)`: the mean loss over all tokens, where p does not divide them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import Named, agree
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson06.common import FIRST, OVER_BUDGET, by_result, double_bytes, is_right, result_of, rules
from tpcourse.check.lesson06.early_return import EARLY_RETURN
from tpcourse.check.lesson06.recipe import D, Made, Shared, new_parts
from tpcourse.check.misconceptions import Finding, Misconception, by_fault
from tpcourse.check.report import FAILED, PASSED, Line
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group
from tpcourse.dims import split_sizes

Inputs = list[dict[str, Any]]
LOSS, DX = range(2)
NORMED = "tokens normed"
SIZES = {2: (3, 5), 3: (2, 7), 4: (3, 6)}
NAMES = ("up.weight", "up.bias", "down.weight", "mlp_bias", "norm2.scale")


def cases(world_size: int) -> list[Case]:
    """p divides the tokens nowhere; then, in the smallest group, a rank without any."""
    found = [one_group(p, world_size, B=SIZES[p][0], T=SIZES[p][1], D=D) for p in group_sizes(world_size)]
    return [*found, one_group(2, world_size, B=2, T=1, D=D, edge=True)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """x and target are the same on every rank, each rank has its hidden units."""
    shape = [case.sizes[name] for name in "BTD"]
    x, target = Shared(nonzero(generator, *shape)), Shared(nonzero(generator, *shape))
    parts = [{name: part[name] for name in NAMES} for part in new_parts(generator, case.p)]
    return [{"x": x, "mlp": Made("Mlp", part), "target": target} for part in parts]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The loss and dx are whole on every rank; of the weights' gradients each rank has its part."""
    errors, dx, gradients = _one_device(inputs)
    return [Named({"loss": np.asarray(errors.mean()), "dx": dx, **own}) for own in gradients]


def budget(case: Case, inputs: Inputs) -> Budget:
    """Pieces count as p times the longest; the loss is one number."""
    per_token = inputs[0]["x"].array[:, :1].nbytes
    n = case.p * max(split_sizes(case.sizes["T"], case.p)) * per_token
    return Budget(judge=rules({"all_gather": (3, n), "reduce_scatter": (2, n), "all_reduce": (1, 8)}))


def own_tokens(cases: list[Evidence]) -> Line:
    """How many tokens the norm got: a rank's own, or as many as the longest piece has."""
    for evidence in reversed(cases):
        most = max(split_sizes(evidence.case.sizes["T"], evidence.p))
        for rank, outcome in enumerate(evidence.outcomes):
            if (num := outcome.facts.get("normed", 0)) > most:
                text = f"the norm gets {num} tokens on rank {rank}, and the longest piece has {most}"
                return Line(NORMED, FAILED, f"{text} (at {evidence.case})")
    return Line(NORMED, PASSED, "the norm gets this rank's tokens, padded at most to the longest piece")


def _one_device(inputs: Inputs, padding: int = 0) -> tuple[np.ndarray, np.ndarray, list[dict[str, np.ndarray]]]:
    """Squared errors [B, T, D], and the gradients of their mean; `padding` adds tokens of zeros."""
    import torch

    from tpcourse.check.lesson06.nets import Mlp

    given = inputs[0]
    x, target = (
        torch.nn.functional.pad(torch.from_numpy(given[name].array.copy()), (0, 0, 0, padding))
        for name in ("x", "target")
    )
    parts = [Mlp(each["mlp"].weights) for each in inputs]
    h = parts[0].norm(x.requires_grad_())
    errors = (x + torch.stack([part.work(h) for part in parts]).sum(0) + parts[0].bias - target).square()
    errors.mean().backward()
    assert x.grad is not None
    gradients = [{f"d{name}": leaf.grad.numpy() for name, leaf in part.split_parameters()} for part in parts]
    return errors.detach().numpy(), x.grad.numpy(), gradients


def _shares(evidence: Evidence) -> list[np.ndarray]:
    """Squared errors of each rank's tokens."""
    errors = _one_device(evidence.inputs)[0]
    ends = np.cumsum(split_sizes(errors.shape[1], evidence.p))[:-1]
    return np.split(errors, ends, axis=1)


def _everywhere(evidence: Evidence, loss: Any) -> list[np.ndarray]:
    return [np.asarray(loss)] * evidence.p


def _mean_of_means(evidence: Evidence) -> list[np.ndarray]:
    return _everywhere(evidence, np.mean([share.mean() for share in _shares(evidence) if share.size]))


def _own_share(evidence: Evidence) -> list[np.ndarray]:
    total = sum(share.size for share in _shares(evidence))
    return [np.asarray(share.sum() / total) for share in _shares(evidence)]


def _padding_counts(finding: Finding) -> bool:
    """The errors of padding tokens are in the sum, or their number in the count, or both."""
    evidence = finding.evidence
    num_tokens = evidence.case.sizes["T"]
    errors = _one_device(evidence.inputs, -num_tokens % evidence.p)[0]
    real = errors[:, :num_tokens]
    wrong = (errors.mean(), errors.sum() / real.size, real.sum() / errors.size)
    return any(_gives_loss(evidence, loss) for loss in wrong)


def _gives_loss(evidence: Evidence, loss: Any) -> bool:
    got = result_of(evidence, LOSS) if evidence.finished else []
    return not is_right(evidence, LOSS) and all(agree(a, np.asarray(loss)) for a in got) and bool(got)


def _drops_the_rest(finding: Finding) -> bool:
    """The last tokens got no gradient."""
    evidence, num_tokens = finding.evidence, finding.evidence.case.sizes["T"]
    got = [dx for dx in result_of(evidence, DX) if isinstance(dx, np.ndarray)] if evidence.finished else []
    rest = [dx[:, num_tokens // evidence.p * evidence.p :] for dx in got if dx.shape == evidence.expected[0][DX].shape]
    return bool(rest) and not is_right(evidence, LOSS) and all(not part.any() for part in rest)


def _own_tokens_of_dx(evidence: Evidence) -> list[np.ndarray]:
    dx = evidence.expected[0][DX]
    ends = np.cumsum([0, *split_sizes(dx.shape[1], evidence.p)])
    found = [np.zeros_like(dx) for _ in range(evidence.p)]
    for own, begin, end in zip(found, ends[:-1], ends[1:], strict=True):
        own[:, begin:end] = dx[:, begin:end]
    return found


def _counts_tokens(finding: Finding) -> bool:
    """More than one call, and each of a single number."""
    sums = [event for event in finding.evidence.outcomes[0].events if event.op == "all_reduce"]
    return finding.evidence.right and len(sums) > 1 and all(event.numel == 1 for event in sums)


def _not_a_number(finding: Finding) -> bool:
    """A loss is NaN in the case with a rank that has no token, and the loss of no other."""
    cases = [case for case in (finding.evidence, *finding.others) if case.finished]
    edges = {case.case.edge for case in cases for loss in result_of(case, LOSS) if _is_nan(loss)}
    return edges == {True}


def _is_nan(loss: Any) -> bool:
    return isinstance(loss, np.ndarray) and bool(np.isnan(loss).any())


def _fewer_pieces(finding: Finding) -> bool:
    return "sizes for a group of" in finding.error or "index out of range" in finding.error


def _as_if_equal(finding: Finding) -> bool:
    """The report names calls of unequal shapes, or gloo aborted over them, or a list of sizes did not fit."""
    told = any(words in finding.error for words in ("own piece is", "sum to"))
    told = told or any(words in finding.evidence.failure for words in (" with shape ", "SIGABRT"))
    return not finding.evidence.finished and told


EXERCISE = Exercise(
    name="uneven_tokens",
    values="loss, dx and the weights' gradients equal one device's for any T, also where a rank has no token",
    communication="3 all_gathers and 2 reduce_scatters of tokens, padded at most to the longest piece; 1 number",
    cases=cases,
    free=("B", "T"),
    make=make,
    expected=expected,
    budget=budget,
    third=own_tokens,
    probe="lesson06.rank_uneven_tokens",
    misconceptions=(
        *FIRST,
        EARLY_RETURN,
        by_result(
            "mean of means",
            LOSS,
            _mean_of_means,
            "Each rank takes the mean of its own tokens, and the means are averaged: a token on a rank with few of "
            "them counts more.",
            "Sum on each rank, and divide by the number of all elements, `target.numel()`.",
        ),
        Misconception(
            "drops the rest",
            _drops_the_rest,
            "The last T % p tokens are on no rank: T // p for each leaves a rest.",
            "`split_sizes(T, p)` of `tpcourse.dims` gives the rest to the first ranks.",
        ),
        Misconception(
            "padding counts",
            _padding_counts,
            "The padding counts: tokens that nobody wrote are in the loss, or in the number that it is divided by.",
            "Cut the padding off before the loss; B, T and D of `target` are the true count.",
        ),
        Misconception(
            "mean of nothing",
            _not_a_number,
            "A rank without tokens takes a mean over nothing, which is NaN; times 0, and in any sum, it stays NaN.",
            "Sum the squares on each rank: over nothing that is 0. One division, by `target.numel()` of all tokens.",
        ),
        by_result(
            "own share",
            LOSS,
            _own_share,
            "Each rank returns its own share of the loss: nobody adds the shares up.",
            "`sum_copy(loss, group=group)` sums forward and copies the gradient back.",
        ),
        by_result(
            "own tokens of dx",
            DX,
            _own_tokens_of_dx,
            "The loss is right, and dx is zero but for this rank's own tokens: the entrance has no backward.",
            "`split_gather(x, group=group, dim=1, sizes=sizes)` gathers the gradient's pieces.",
        ),
        Misconception(
            "chunk",
            _fewer_pieces,
            "There are fewer pieces than ranks: `torch.chunk` rounds the length up, and the last ranks get none.",
            "`split_sizes(T, p)` always gives p sizes, some of them 0 where T is below p.",
        ),
        Misconception(
            "as if equal",
            _as_if_equal,
            "The pieces are not equally long, and a collective was called as if they were.",
            "Give each pair all the `sizes`, or pad every piece to the longest and cut afterwards.",
        ),
        Misconception(
            "counts tokens",
            _counts_tokens,
            "Right, with a call too many: every rank knows T already.",
            "`target.numel()` is the same on every rank, so the count need not travel.",
        ),
        double_bytes(
            "Right, at double the bytes: an all-reduce brings every rank all tokens, and it keeps its own.",
            "`scatter_sum_gather(h, group=group, dim=1, sizes=sizes)`.",
        ),
        by_fault(
            "norm on all tokens",
            NORMED,
            "The norm runs on all T tokens on every rank: work done p times, and p times the activations to keep.",
            "Norm first, on this rank's tokens; gather what comes out of it.",
        ),
        OVER_BUDGET,
    ),
)
