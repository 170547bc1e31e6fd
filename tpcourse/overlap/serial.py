"""One after the other: torch's collective, and the whole product before or behind it. Nothing is hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from tpcourse.overlap.parts import Part, everything
from tpcourse.overlap.products import product
from tpcourse.overlap.tokens import Moving, Tokens


def arriving(
    x: Tensor, tokens: Tokens, *, pieces: int | None = None, is_apart: bool = False, with_whole: bool = False
) -> Iterator[Part]:
    """All ranks' tokens, in one part: [.., T_r, D] -> [b, R, D].

    Every form takes the same options and may ignore them: `pieces` cuts what travels, with `is_apart` a part may be
    multiplied on a stream of its own, and `with_whole` asks for all tokens in one part, after those that come.
    Traffic: one all-gather, (p-1)/p n bytes; it begins at once, and the part comes with its last byte.
    """
    return _whole(tokens.gather(x, async_op=True), tokens)


def _whole(moving: Moving, tokens: Tokens) -> Iterator[Part]:
    block = tokens.block(moving.wait())
    yield Part(everything(block), block)


def scatter(
    x: Tensor,
    matrix: Tensor,
    tokens: Tokens,
    *,
    pieces: int | None = None,
    between: Callable[[], object] | None = None,
) -> Tensor:
    """This rank's tokens of the sum of all ranks' products: [.., T, K], [K, D] -> [.., T_r, D].

    No byte leaves before the last row is there; `between`, work that does not need the sum, hides it.
    Traffic: one reduce-scatter, (p-1)/p n bytes.
    """
    moving = tokens.scatter_sum(product(x, matrix.T), async_op=True)
    if between is not None:
        between()
    return moving.wait()
