"""What all stages have in common: flat arrays, the optimizer of this rank's pieces, the norm, the bytes held."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.memory import Held, held
from tpcourse.zero.calls import broadcast_from_first
from tpcourse.zero.flat import Flat
from tpcourse.zero.norm import Share, global_norm, scale_to
from tpcourse.zero.plan import Named, named_groups, require_bucket


class Pieces(ABC):
    """Weights in flat arrays, and torch's optimizer on this rank's piece of each; arguments as in `Zero1`.

    `flats` are in the order in which backward completes them.
    """

    keeps_whole = True

    def __init__(
        self,
        module: nn.Module,
        *,
        dp: dist.ProcessGroup | None,
        groups: Iterable[Mapping[str, Any]] | None = None,
        bucket_mb: float = 25.0,
        finish: Callable[[Sequence[nn.Parameter]], object] | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        **options: Any,
    ) -> None:
        self.module, self.dp, self.finish, self.bucket_mb = module, dp, finish, require_bucket(bucket_mb)
        self.trained = [weight for weight in module.parameters() if weight.requires_grad]
        self.flats: list[Flat] = []
        pieces = []
        for group in named_groups(module, groups):
            flats = [Flat(lot, dp=dp, apart=not self.keeps_whole) for lot in self._lots(group["params"])]
            pieces.append({**group, "params": [flat.master for flat in flats]})
            self.flats += flats
        for _, tensor in self.rest():
            broadcast_from_first(tensor, dp=dp)
        arrival = {id(weight): -place for place, weight in enumerate(module.parameters())}  # backward begins at the end
        self.flats.sort(key=lambda flat: max(arrival[id(weight)] for weight in flat.weights))
        self.optimizer = optimizer(pieces, **options)
        self._under_way: tuple[Flat, Tensor, Tensor, dist.Work | None] | None = None

    def rest(self) -> list[tuple[str, Tensor]]:
        """What every rank holds whole, by name: frozen weights and buffers."""
        frozen = [(name, w.detach()) for name, w in self.module.named_parameters() if not w.requires_grad]
        return [*frozen, *self.module.named_buffers()]

    @abstractmethod
    def _lots(self, weights: Named) -> list[Named]:
        """Which weights share a flat array."""

    @abstractmethod
    def _spread(self) -> None:
        """Give the new pieces to all ranks."""

    @abstractmethod
    def reduce(self) -> None:
        """Average the gradients that have not been averaged."""

    def norm(self, *, tp: dist.ProcessGroup | None = None, share: Share | None = None) -> Tensor:
        """The norm of the whole averaged gradient, equal on all ranks; see `global_norm`."""
        self.reduce()
        return global_norm(self.flats, dp=self.dp, tp=tp, share=share)

    def clip(self, max_norm: float, *, tp: dist.ProcessGroup | None = None, share: Share | None = None) -> Tensor:
        """Scale the gradient down to `max_norm` if its norm is above, as `clip_grad_norm_`; returns the norm before."""
        norm = self.norm(tp=tp, share=share)
        scale_to(self.flats, max_norm, norm)
        return norm

    def zero_grad(self) -> None:
        """Drop all gradients, averaged or not."""
        for flat in self.flats:
            flat.gradient = None
            for weight in flat.weights:
                weight.grad = None

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within the block the module has all its weights, to read. Traffic: none; in stage 3 one all-gather each."""
        yield

    @property
    def held(self) -> Held:
        """Bytes that this rank holds of weights, gradients, master weights and moments, each storage once."""
        pieces = [flat.piece for flat in self.flats]
        gradients = [flat.gradient for flat in self.flats if flat.gradient is not None]
        return held(self.module, self.optimizer, parameter=pieces, gradient=gradients, buffer=self._under_way)
