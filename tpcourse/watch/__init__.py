"""Say in words why ranks wait for each other, and where finished calls silently disagree."""

from tpcourse.watch.hang import diagnose
from tpcourse.watch.report import Report
from tpcourse.watch.silent import disagreements

__all__ = ["Report", "diagnose", "disagreements"]
