"""What `start_ranks` was asked for: numbers and names that can be meant, or a sentence that says why not."""

from __future__ import annotations

CPU_RANKS = 4


def choose(n: int | None, backend: str | None, num_gpus: int) -> tuple[int, str]:
    """How many ranks on which backend, or a sentence that says why not."""
    if backend == "gloo":
        return n or CPU_RANKS, "gloo"
    if backend == "nccl" or num_gpus >= 2:
        wanted = num_gpus if n is None else n
        if wanted > num_gpus or num_gpus == 0:
            ways = f"start_ranks({num_gpus}), or " if num_gpus else ""
            raise ValueError(
                f"{wanted or 2} ranks on NCCL need {wanted or 2} GPUs, one each, and there are {num_gpus}. Ways out: "
                f"{ways}start_ranks({n or CPU_RANKS}, backend='gloo') on the CPU"
            )
        return wanted, "nccl"
    return n or CPU_RANKS, "gloo"


def check_arguments(n: int | None, backend: str | None, patience: float) -> None:
    """Raise ValueError for what cannot be meant."""
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= 64):
        raise ValueError(f"n={n!r}: the number of ranks is a whole number from 1 to 64, for example start_ranks(4)")
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f"backend={backend!r}: 'nccl' (GPUs) or 'gloo' (CPU)")
    check_patience(patience)


def check_patience(seconds: float) -> float:
    """The seconds as a number, or a ValueError that quotes them."""
    if not isinstance(seconds, (int, float)) or not 0.5 <= seconds <= 600:
        raise ValueError(f"patience={seconds!r}: a number of seconds from 0.5 to 600, for example 20")
    return float(seconds)
