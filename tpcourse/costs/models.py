"""GPUs and models as the few numbers that their costs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PEAK_FLOPS: Mapping[str, float] = MappingProxyType({"H100": 989e12, "A100": 312e12})
"""bf16 FLOP/s on paper, dense (NVIDIA data sheets, SXM). Products reach about four fifths of it."""


@dataclass(frozen=True)
class Model:
    """A transformer with grouped-query attention and a gated MLP, by the course's letters; no biases."""

    name: str
    D: int  # width
    F: int  # hidden width of the MLP
    H: int  # heads of the queries
    kv_heads: int  # heads of keys and of values
    K: int  # width of a head
    L: int  # layers
    source: str = ""

    @property
    def columns(self) -> tuple[int, int]:
        """Output widths of the products that are split by columns: queries, keys and values; gate and up."""
        return (self.H + 2 * self.kv_heads) * self.K, 2 * self.F

    @property
    def rows(self) -> tuple[int, int]:
        """Input widths of the products that are split by rows: attention's output; down."""
        return self.H * self.K, self.F


LLAMA = "The Llama 3 Herd of Models, table 3 (arXiv:2407.21783)"
MODELS: Mapping[str, Model] = MappingProxyType({
    model.name: model
    for model in (
        Model("Llama 3 8B", 4096, 14336, 32, 8, 128, 32, LLAMA),
        Model("Llama 3 70B", 8192, 28672, 64, 8, 128, 80, LLAMA),
        Model("Llama 3 405B", 16384, 53248, 128, 8, 128, 126, LLAMA),
    )
})  # fmt: skip
"""Name -> model."""


def find_model(model: str | Model) -> Model:
    """A model by its name, or as it is. Raises: ValueError that names the known ones."""
    if isinstance(model, Model):
        return model
    if model not in MODELS:
        raise ValueError(f"no model is named {model!r}; there are {', '.join(MODELS)}. Or give a Model(...)")
    return MODELS[model]
