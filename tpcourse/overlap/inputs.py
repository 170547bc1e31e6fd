"""What the products ask of their tensors, and the sentence a user reads when it is not so."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.wire.inputs import place


def require_column(x: Tensor, weight: Tensor, bias: Tensor | None, tp: dist.ProcessGroup) -> None:
    """Raises: ValueError unless x is whole in D, and the bias is cut as the weight's rows."""
    place(tp)
    _require_matrix(x, weight)
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"x of shape {list(x.shape)} has {x.shape[-1]} columns, but the weight {list(weight.shape)} takes "
            f"{weight.shape[1]}: give x whole in D, and this rank's rows of the weight, [F/p, D]"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"the bias has shape {list(bias.shape)}, but this rank's weight {list(weight.shape)} has "
            f"{weight.shape[0]} rows: cut the bias as the weight's rows, [F/p]"
        )


def require_row(x: Tensor, weight: Tensor, bias: Tensor | None, tp: dist.ProcessGroup) -> None:
    """Raises: ValueError unless x and the weight have the same part of F, and the bias is whole."""
    _, p = place(tp)
    _require_matrix(x, weight)
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"x of shape {list(x.shape)} has {x.shape[-1]} columns, but the weight {list(weight.shape)} takes "
            f"{weight.shape[1]}: give this rank's part of both, [.., F/p] (what column_linear returns, not gathered) "
            f"and [D, F/p]; p = {p}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"the bias has shape {list(bias.shape)}, but y is {weight.shape[0]} wide: the bias of row_linear is whole "
            "on every rank, [D]"
        )


def require_whole(regather: bool, overlap: str) -> None:
    """Raises: ValueError if x is whole, and something is asked for that only cut tokens can have."""
    if regather:
        raise ValueError(
            "regather = True, but with sequence_dim = None x is whole and nothing is gathered: give the dim of the "
            "tokens, as sequence_dim=1 for [B, T_r, D], or leave regather out"
        )
    if overlap not in ("serial", "auto"):
        raise ValueError(
            f"overlap = {overlap!r}, but with sequence_dim = None no tokens are gathered or scattered beside the "
            "product: give the dim of the tokens, as sequence_dim=1 for [B, T, D], or leave overlap out"
        )


def _require_matrix(x: Tensor, weight: Tensor) -> None:
    if weight.dim() != 2 or x.dim() == 0:
        raise ValueError(
            f"x has shape {list(x.shape)} and the weight {list(weight.shape)}: give [.., in] and [out, in]"
        )


def as_autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors in the dtype that autocast gives a product, if it is on; gradients return to their own dtype."""
    device = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors)
