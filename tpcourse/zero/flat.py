"""`Flat`: some weights of one dtype as one array, of which this rank owns one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.adam import WIDE
from tpcourse.zero.calls import broadcast_from_first, gather_pieces, place_in, wait_for


class Flat:
    """Weights one after another in `whole`, and zeros up to a length that p divides.

    Shapes: whole [p n]; piece, master and gradient [n], elements r n .. (r+1) n - 1, with n = ceil(P/p).
    The weights become views of `whole`. `master` is what the optimizer steps: the piece itself, or a float32 copy of a
    narrower one. `gradient` is the average over ranks, once there is one. `apart=True` gives the piece memory of
    its own, so that the memory of `whole` can be released.
    Traffic: at the start one broadcast from the first rank.
    """

    def __init__(self, weights: dict[str, nn.Parameter], *, dp: dist.ProcessGroup | None, apart: bool = False) -> None:
        self.names, self.weights, self.dp = list(weights), list(weights.values()), dp
        r, p = place_in(dp)
        self.sizes = [weight.numel() for weight in self.weights]
        self.n = -(-sum(self.sizes) // p)
        self.padding = p * self.n - sum(self.sizes)
        self.start = r * self.n
        self.whole = self.joined([weight.detach() for weight in self.weights])
        broadcast_from_first(self.whole, dp=dp)
        for weight, part in zip(self.weights, self.whole.split([*self.sizes, self.padding]), strict=False):
            weight.data = part.view(weight.shape)
        own = self.whole[self.start : self.start + self.n]
        self.piece = own.clone() if apart else own
        self.master = self.piece if self.piece.element_size() >= WIDE else self.piece.float()
        self.gradient: Tensor | None = None
        self._work: dist.Work | None = None

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and weight, in the order in which they lie."""
        return zip(self.names, self.weights, strict=True)

    def joined(self, parts: Sequence[Tensor | None]) -> Tensor:
        """A tensor for each weight -> [p n], in memory of its own. None, and the padding, are zeros."""
        zeros = self.weights[0].new_zeros
        pairs = zip(parts, self.sizes, strict=True)
        flat = [zeros(size) if part is None else part.reshape(-1) for part, size in pairs]
        return torch.cat([*flat, zeros(self.padding)])

    def add(self, gradient: Tensor) -> None:
        """Add an averaged gradient of this rank's piece."""
        self.gradient = gradient if self.gradient is None else self.gradient.add_(gradient)

    def lend(self) -> None:
        """Show the optimizer the gradient, in the master's dtype."""
        self.master.grad = None if self.gradient is None else self.gradient.to(self.master.dtype)

    def settle(self) -> None:
        """After the optimizer: drop its gradient, and round the master to the weights' dtype."""
        self.master.grad = None
        if self.master is not self.piece:
            self.piece.copy_(self.master)

    def start_gather(self) -> None:
        """Begin to fill `whole` from all ranks' pieces. Traffic: one all-gather, (p-1) n elements."""
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        self._work = gather_pieces(self.whole, self.piece, dp=self.dp)

    def wait(self) -> None:
        """Until `whole` is filled."""
        wait_for(self._work)
        self._work = None

    @property
    def is_under_way(self) -> bool:
        """Whether `whole` is being filled, and `wait` was not called yet."""
        return self._work is not None

    @property
    def is_here(self) -> bool:
        """Whether `whole` has memory: it is filled, or on its way."""
        return self.whole.untyped_storage().nbytes() > 0

    def release(self) -> None:
        """Give the memory of `whole`, and so of the weights, back; views and saved tensors stay valid names of it."""
        self.wait()
        self.whole.untyped_storage().resize_(0)

    def spans(self) -> Iterator[tuple[str, nn.Parameter, slice, slice]]:
        """For each weight that lies in this rank's piece: name, weight, where in the flattened weight, where in the
        piece.
        """
        end = 0
        for (name, weight), size in zip(self.named(), self.sizes, strict=True):
            begin, end = end, end + size
            first, last = max(begin, self.start), min(end, self.start + self.n)
            if first < last:
                yield name, weight, slice(first - begin, last - begin), slice(first - self.start, last - self.start)
