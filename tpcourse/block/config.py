"""The sizes and choices of a GPT: the same on every rank, whatever the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass

CHOICES = {"norm": ("rms", "layer"), "mlp": ("swiglu", "gelu"), "attention": ("fused", "unfused")}


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """A GPT, in the letters of `dims.LETTERS`; `kv_heads` and `F` have defaults that follow from the others.

    `kv_heads` is H (each query head has a K/V head of its own), F is 4D for "gelu" and 8D/3, rounded up to a
    multiple of 8, for "swiglu", which has three matrices for gelu's two. `rotary=False` learns T positions instead;
    `tied` uses the embedding again as the head; `bias` gives every product but the head one, and a layer norm.
    "fused" is torch's `scaled_dot_product_attention`; "unfused" is the attention that the memory formulas count.

    Raises: ValueError for a size below 1, heads that do not divide, an unknown choice, or dropout outside [0, 1).
    """

    V: int
    T: int
    D: int
    H: int
    L: int
    kv_heads: int = 0
    F: int = 0
    norm: str = "rms"
    mlp: str = "swiglu"
    bias: bool = False
    rotary: bool = True
    tied: bool = True
    dropout: float = 0.0
    attention: str = "fused"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.H)
        object.__setattr__(self, "F", self.F or (4 * self.D if self.mlp == "gelu" else -(-self.D // 3) * 8))
        for name in ("V", "T", "D", "H", "L", "kv_heads", "F"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be a whole number, at least 1")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} = {getattr(self, name)!r} is unknown: use {' or '.join(map(repr, choices))}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout = {self.dropout} is not a share that can be dropped: use 0 to below 1")
        _require_heads(self.D, self.H, self.kv_heads, self.rotary)

    @property
    def K(self) -> int:
        """The width of a head."""
        return self.D // self.H


def _require_heads(D: int, H: int, kv_heads: int, rotary: bool) -> None:
    if H % kv_heads:
        raise ValueError(f"H = {H} heads do not share {kv_heads} K/V heads evenly: use kv_heads that divide {H}")
    if D % H:
        raise ValueError(f"D = {D} does not divide by H = {H} heads: use D = {D // H * H or H} or {(D // H + 1) * H}")
    if rotary and D // H % 2:
        raise ValueError(f"rotary positions turn pairs, and a head is {D // H} wide (D = {D}, H = {H}): make D/H even")
