"""One after the other: torch's collective, and the whole product before or behind it. Nothing is hidden."""

from __future__ import annotations

from torch import Tensor

from tpcourse.overlap.products import product
from tpcourse.overlap.tokens import Tokens


def gather(
    x: Tensor, matrix: Tensor, bias: Tensor | None, tokens: Tokens, *, keep: bool = True, pieces: int | None = None
) -> tuple[Tensor, Tensor]:
    """The product of all ranks' tokens, and these: [.., T_r, D], [D, N] -> [.., T, N] and [.., T, D].

    Traffic: one all-gather, (p-1)/p n bytes.
    """
    whole = tokens.gather(x).wait()  # all wait for the last byte
    return product(whole, matrix.T, bias), whole


def scatter(x: Tensor, matrix: Tensor, tokens: Tokens, *, pieces: int | None = None) -> Tensor:
    """This rank's tokens of the sum of all ranks' products: [.., T, K], [K, D] -> [.., T_r, D].

    Traffic: one reduce-scatter, (p-1)/p n bytes.
    """
    return tokens.scatter_sum(product(x, matrix.T)).wait()  # no byte leaves before the last row is there
