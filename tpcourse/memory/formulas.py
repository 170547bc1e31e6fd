"""What the formulas say a training step holds: model states, activations of a layer, the price of recomputing
them.

The letters of the sources and of this course: s = T tokens, b = B batch, h = D width, a = H heads, t = p
ranks.
"""

from __future__ import annotations

from math import sqrt

RECOMPUTE = ("none", "selective", "full")


def model_state_bytes(num_parameters: int, *, master: bool = True) -> dict[str, int]:
    """Bytes of the model states of mixed-precision Adam, by kind, before any activation.

    2 (parameter) + 2 (gradient) + 4 (master copy) + 4 + 4 (moments) = 16 bytes a parameter
    (Rajbhandari and others, "ZeRO", arXiv:1910.02054, section 3.1); 12 without the master copy.

    Raises: ValueError unless the number of parameters is at least 1.
    Trap: 12 is also what that paper calls K, the optimizer's share alone: master copy and moments.
    """
    require_sizes(num_parameters=num_parameters)
    each = {"parameter": 2, "gradient": 2, "master": 4 if master else 0, "moment": 4 + 4}
    return {kind: size * num_parameters for kind, size in each.items() if size}


def activation_bytes(
    batch: int, tokens: int, width: int, heads: int, *, recompute: str = "none", tp: int = 1,
    sequence_parallel: bool = False, element_bytes: int = 2,
) -> float:  # fmt: skip
    """Bytes of activations that one layer keeps for backward, on each of `tp` ranks (unfused attention,
    dropout).

    sbh (34 + 5as/h); selective recompute 34 sbh; full 2 sbh; tensor parallel sbh (10 + 24/t + 5as/(ht)); with
    sequence parallelism all of it over t (Korthikanti and others, arXiv:2205.05198, table 2; there the input
    that full recompute keeps is whole, with sequence parallelism it is a shard). Attention 11 sbh + 5as²b,
    MLP 19 sbh, norms 4 sbh. For e bytes an element instead of 2: 34 = 16e + 2, 10 = 4e + 2, 24 = 12e, 5 = 2e
    + 1; a mask is 1 byte.

    Raises: ValueError for a size below 1, or a recompute that is not none, selective or full.
    Trap: heads or width that tp does not divide; ranks then hold unequal shares, and this is their mean.
    """
    require_sizes(batch=batch, tokens=tokens, width=width, heads=heads, tp=tp, element_bytes=element_bytes)
    require_recompute(recompute)
    unit, e = batch * tokens * width, element_bytes
    if recompute == "full":
        return e * unit / (tp if sequence_parallel else 1)
    # Norms, the inputs of split products and the dropout after them are whole on every rank.
    whole = (4 * e + 2) * unit / (tp if sequence_parallel else 1)
    split = 12 * e * unit / tp
    scores = (2 * e + 1) * heads * tokens**2 * batch / tp if recompute == "none" else 0.0
    return whole + split + scores


def layer_flops(batch: int, tokens: int, width: int, *, recompute: str = "none") -> int:
    """Floating-point operations of one layer's products in a training step, forward and backward.

    Forward 24sbh² + 4s²bh, backward twice that (arXiv:2205.05198, appendix A); recompute adds what runs
    again: both attention products, 4s²bh, or the whole forward.

    Raises: ValueError for a size below 1, or a recompute that is not none, selective or full.
    Trap: torch stops recomputing once the last tensor that backward asks for is there, so it may pay less.
    """
    require_sizes(batch=batch, tokens=tokens, width=width)
    require_recompute(recompute)
    attention = 4 * batch * tokens**2 * width
    forward = 24 * batch * tokens * width**2 + attention
    return 3 * forward + {"none": 0, "selective": attention, "full": forward}[recompute]


def layer_parameters(width: int) -> int:
    """Parameters of one layer with biases, two norms and an MLP of 4 widths: 12h² + 13h. Raises: ValueError
    below 1.
    """
    require_sizes(width=width)
    return 12 * width**2 + 13 * width


def gpt_parameters(layers: int, width: int, vocabulary: int = 0, tokens: int = 0) -> int:
    """Parameters of a GPT: L (12h² + 13h) + 2h, and (V + T) h for tied embeddings if sizes are given.

    Raises: ValueError for layers or width below 1, or a negative vocabulary or number of tokens.
    """
    require_sizes(layers=layers, width=width)
    require_sizes(least=0, vocabulary=vocabulary, tokens=tokens)
    return layers * layer_parameters(width) + 2 * width + (vocabulary + tokens) * width


def gpt_width(num_parameters: float, layers: int) -> int:
    """The width of a GPT with about this many parameters in its layers: h = sqrt(P / 12L), in whole heads of
    128.

    Raises: ValueError unless both are at least 1.
    """
    require_sizes(num_parameters=num_parameters, layers=layers)
    return max(128, 128 * round(sqrt(num_parameters / (12 * layers)) / 128))


def require_sizes(*, least: int = 1, **sizes: float) -> None:
    """Raises: ValueError that names the first size below `least` with its number."""
    for name, value in sizes.items():
        if not value >= least:
            raise ValueError(f"{name} = {value} must be at least {least}")


def require_recompute(recompute: str) -> None:
    """Raises: ValueError unless it is none, selective or full."""
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute = {recompute!r} is unknown: use {', '.join(map(repr, RECOMPUTE))}")
