"""Links between two ranks as two numbers each: seconds a message, and bytes a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from tpcourse.costs.asked import require_not_negative, require_positive


@runtime_checkable
class Line(Protocol):
    """What the alpha-beta model needs of a link, or of a fit: n bytes take alpha_s + n beta_s_per_byte seconds."""

    @property
    def alpha_s(self) -> float: ...

    @property
    def beta_s_per_byte(self) -> float: ...


@dataclass(frozen=True)
class Link:
    """A link that a rank sends on: one message of n bytes takes alpha_s + n / bytes_per_s (Hockney 1994).

    `bytes_per_s` is one direction of one rank. Trap: figures on paper are not reached. NCCL reaches about four
    fifths of NVLink's, 360 to 370 GB/s of 450 (nccl-tests issues 212, 326); and so do products of a GPU's peak, so
    that the ratio of two figures on paper is worth more than each of them.
    Raises: ValueError unless bytes_per_s is above 0 and alpha_s is not negative.
    """

    name: str
    alpha_s: float
    bytes_per_s: float
    source: str = ""

    def __post_init__(self) -> None:
        require_not_negative(self.alpha_s, f"alpha_s of {self.name}", "4e-6")
        require_positive(self.bytes_per_s, f"bytes_per_s of {self.name}", "50e9")

    @property
    def beta_s_per_byte(self) -> float:
        """Seconds a byte."""
        return 1 / self.bytes_per_s


STEP = "alpha: NCCL's own model, a ring step of protocol Simple (src/graph/tuning.cc, hwLat)"
LINKS: Mapping[str, Link] = MappingProxyType({
    link.name: link
    for link in (
        Link("NVLink 4", 3.4e-6, 450e9, f"H100 data sheet: 900 GB/s, both directions together. {STEP}"),
        Link("PCIe 5", 5.7e-6, 63.0e9, f"PCIe 5.0 x16: 32 GT/s x 16 lanes x 128/130. {STEP}"),
        Link("PCIe 4", 5.7e-6, 31.5e9, f"PCIe 4.0 x16: 16 GT/s x 16 lanes x 128/130. {STEP}"),
        Link("400 Gb/s", 14e-6, 50e9, f"InfiniBand NDR or 400 Gb Ethernet, a card for each GPU. {STEP}"),
        Link("100 Gb/s", 14e-6, 12.5e9, f"InfiniBand EDR or 100 Gb Ethernet, a card for each GPU. {STEP}"),
        Link("10 Gb/s", 14e-6, 1.25e9, f"10 Gb Ethernet; over TCP alpha is several times longer. {STEP}"),
        Link("loopback", 100e-6, 1e9, "gloo in one machine, a core for each rank: an order of magnitude, fit your own"),
    )
})  # fmt: skip
"""Name -> link, the fastest first. Figures of this machine come from `fit`, not from here."""


def find_link(link: str | Line) -> Line:
    """A link by its name; a `Link`, a `Fit` or anything else with alpha_s and beta_s_per_byte as it is.

    Raises: ValueError that names the known links.
    """
    if not isinstance(link, str) and isinstance(link, Line):
        return link
    if not isinstance(link, str) or link not in LINKS:
        raise ValueError(f"no link is named {link!r}; there are {', '.join(LINKS)}. Or give Link(name, alpha, bytes/s)")
    return LINKS[link]


def half_size(link: str | Line) -> float:
    """The message that takes twice alpha, n = alpha / beta bytes: below it start-up is the larger part of the time.

    Hockney's n_1/2 (1994): at this size a link gives half of its bandwidth.
    """
    line = find_link(link)
    return line.alpha_s / line.beta_s_per_byte if line.beta_s_per_byte else float("inf")
