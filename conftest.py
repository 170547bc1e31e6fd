"""Stages of a test run: what runs first, and how long each took."""

import signal
import time
from collections import defaultdict

import pytest

from tpcourse.home import settle_home

STAGES = ("style", "types", "built notebooks", "browser", "notebooks", "hangs", "unit")
"""In this order: what fails at once, then long files, so that short ones are left to share when workers run dry."""

settle_home()       # before nbval starts a kernel


def stage_of(item: pytest.Item) -> str:
    """The stage a test belongs to: its own mark, else by its file."""
    mark = item.get_closest_marker("stage")
    if mark:
        return mark.args[0]
    return "notebooks" if item.path.suffix == ".ipynb" else "unit"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.user_properties.append(("stage", stage_of(item)))
    items.sort(key=lambda item: STAGES.index(stage_of(item)))


class StageClock:
    """Adds up results and seconds per stage, and prints a line for each before pytest's own summary."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.begin_s = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        stage = dict(report.user_properties)["stage"]
        self.seconds[stage] += report.duration
        if report.when == "call" or not report.passed:
            self.counts[stage][report.outcome] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("time per stage")
        for stage in (stage for stage in STAGES if stage in self.seconds):
            counts = ", ".join(f"{n} {outcome}" for outcome, n in self.counts[stage].items())
            terminalreporter.line(f"{stage:16} {self.seconds[stage]:7.1f} s   {counts}")
        terminalreporter.line(f"{'all':16} {time.monotonic() - self.begin_s:7.1f} s   with collection")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: the interrupt button is tested
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(StageClock(), "tpcourse-stages")
