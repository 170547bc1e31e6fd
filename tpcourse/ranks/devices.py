"""Which GPUs the ranks of this machine get: what the environment shows, what the caller picked, what is free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpcourse.ranks.nvidia import Gpu, all_gpus, named

VARIABLE = "CUDA_VISIBLE_DEVICES"
Device = int | str


def visible(environ: Mapping[str, str]) -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES, none if it is empty; None if it is not set, so that all GPUs are visible.

    CUDA reads the list up to the first entry that it cannot use, such as -1.
    """
    if VARIABLE not in environ:
        return None
    entries: list[str] = []
    for entry in map(str.strip, environ[VARIABLE].split(",")):
        if not entry.isdigit() and not entry.startswith(("GPU-", "MIG-")):
            break
        entries.append(entry)
    return entries


def narrowed(devices: Sequence[Device] | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which only `devices` are visible: numbers among the visible ones, or identifiers.

    Raises: ValueError for an empty list, a device named twice, or one that is not visible.
    """
    if devices is None:
        return dict(environ)
    check_devices(devices)
    shown = visible(environ)
    entries = [_entry(device, shown, devices) for device in devices]
    if len(set(entries)) < len(entries):
        raise ValueError(f"devices={list(devices)!r} names one GPU twice; NCCL needs a GPU for each rank")
    return {**environ, VARIABLE: ",".join(entries)}


def check_devices(devices: Sequence[Device]) -> None:
    """Raise ValueError for what cannot be meant."""
    listed = isinstance(devices, list | tuple | range) and len(devices) > 0
    good = listed and all(isinstance(d, int | str) and not isinstance(d, bool) for d in devices)
    if not good:
        raise ValueError(f"devices={devices!r}: a list of GPUs, by number or identifier, for example devices=[0, 1]")
    if len([d for d in devices if str(d).startswith("MIG-")]) > 1:
        raise ValueError(
            f"devices={list(devices)!r}: a process sees one instance of MIG, and NCCL does not join several. "
            "Ways out: whole GPUs, or start_ranks(backend='gloo') on the CPU"
        )


def _entry(device: Device, shown: list[str] | None, devices: Sequence[Device]) -> str:
    """A device as an entry of CUDA_VISIBLE_DEVICES."""
    among = "" if shown is None else f"; visible here ({VARIABLE}) are {len(shown)}: {', '.join(shown) or 'none'}"
    if isinstance(device, str) and not device.isdigit():
        if shown is None or any(entry.startswith(device) for entry in shown):
            return device
    elif shown is None and int(device) >= 0:
        return str(int(device))
    elif shown is not None and 0 <= int(device) < len(shown):
        return shown[int(device)]
    raise ValueError(f"devices={list(devices)!r}: there is no GPU {device!r}{among}")


def check_found(devices: Sequence[Device] | None, count: int) -> None:
    """Raise ValueError if CUDA finds fewer GPUs than were picked."""
    if devices is not None and count < len(devices):
        raise ValueError(
            f"devices={list(devices)!r}: CUDA finds {count} of these {len(devices)} GPUs; {devices[count]!r} is the "
            "first that it cannot use. `nvidia-smi -L` lists what this machine has"
        )


def check_free(environ: Mapping[str, str], count: int) -> None:
    """Raise RuntimeError, in a sentence, if one of the first `count` visible GPUs is full or taken."""
    usable = _usable(environ)
    troubles = [text for gpu in usable[:count] if (text := gpu.trouble())]
    if not troubles:
        return
    free = [number for number, gpu in enumerate(usable) if gpu.trouble() is None]
    ways = [f"start_ranks(devices={free})"] if len(free) >= 2 else []
    ways += [f"start_ranks({count}, backend='gloo') on the CPU"]
    raise RuntimeError(f"{' '.join(troubles)} Ways out: {', or '.join(ways)}")


def _usable(environ: Mapping[str, str]) -> list[Gpu]:
    """The visible GPUs in the order in which CUDA numbers them; those that the driver tells nothing of are left out."""
    names, gpus = visible(environ), all_gpus()
    return gpus if names is None else named(gpus, names)


def explained(error: BaseException) -> str | None:
    """What CUDA means when a rank cannot use its GPU, or None for any other error."""
    text = f"{getattr(error, 'ename', '')} {getattr(error, 'evalue', error)}"
    if "busy or unavailable" in text:
        return "a GPU is taken: it serves one process at a time, and another has it. `nvidia-smi` shows which"
    if "CUDA" in text and "out of memory" in text:
        return "a GPU is full: no memory was left to start a rank on it. `nvidia-smi` shows who holds it"
    return None
