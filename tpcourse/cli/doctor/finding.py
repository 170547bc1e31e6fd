"""One line of doctor's report."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it stands, and in words what follows from it."""

    level: Literal["ok", "warn", "fail"]
    what: str
    text: str

    def __str__(self) -> str:
        first, *more = self.text.splitlines()
        return "\n".join([f"{self.level:4}  {self.what:13}  {first}", *(f"{'':21}{line}" for line in more)])
