"""What a rank has of each weight, as `torch.distributed.checkpoint` asks for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


class Chunk(Tensor):
    """Elements start .. start + n - 1 of a flattened weight of `numel` elements; the others are on other ranks.

    Torch's protocol for this (torch.distributed._checkpointable) lets the library cut and join chunks itself: those
    that p ranks write are read as those that q ranks need.
    Shapes: part [n]; the chunk itself [numel], in name only: it has no memory.
    """

    part: Tensor
    start: int

    @staticmethod
    def __new__(cls, part: Tensor, start: int, numel: int) -> Chunk:
        chunk = Tensor._make_wrapper_subclass(cls, (numel,), dtype=part.dtype, device=part.device)
        chunk.part, chunk.start = part, start
        return chunk

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(f"{func} needs all elements of a weight, and a Chunk has some: use its part")

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets=torch.Size([self.start]), sizes=self.part.size())]

    def __create_write_items__(self, key: str, _: object) -> list[WriteItem]:
        (chunk,) = self.__create_chunk_list__()
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(self.part), self.size())
        return [WriteItem(MetadataIndex(key, chunk.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __get_tensor_shard__(self, _: MetadataIndex) -> Tensor:
        return self.part
