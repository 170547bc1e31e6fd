"""What doctor says of a machine, and that it ends whatever that machine does."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tpcourse.cli import machine, main
from tpcourse.cli.doctor import hardware, probe, software, system
from tpcourse.cli.doctor.leftovers import leftovers
from tpcourse.cli.machine import Card

H200 = Card("NVIDIA H200", 143771, "580.95")


def only(findings):
    (finding,) = findings
    return finding


def test_it_prints_a_line_for_everything_and_exits_0_where_ranks_work(capsys):
    assert main(["doctor", "--timeout", "90"]) == 0
    out = capsys.readouterr().out
    for what in ("Python", "packages", "memory", "GPUs", "host name", "loopback", "home", "leftovers", "ranks"):
        assert f"  {what} " in out
    assert "4 on gloo started and summed" in out or "on nccl started and summed" in out
    assert "The course works here" in out


def test_json_says_the_same_to_a_program(capsys, monkeypatch):
    monkeypatch.setattr(probe.Probe, "findings", lambda self: iter(()))
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["works"] is True
    assert all(finding["level"] in ("ok", "warn", "fail") for finding in report["findings"])


def test_something_needed_that_fails_is_exit_status_1_and_named_in_the_last_line(capsys, monkeypatch):
    monkeypatch.setattr(software, "version", lambda name: None if name == "ipyparallel" else "1.0")
    monkeypatch.setattr(probe.Probe, "findings", lambda self: iter(()))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "missing: ipyparallel" in out
    assert "does not work here yet; see packages" in out


def test_versions_other_than_the_pinned_are_named_and_a_local_build_counts_as_its_version(monkeypatch):
    installed = {"torch": "2.13.0+cu130", "matplotlib": "3.0.0"}
    pins = software.pinned(Path(__file__).parents[1] / "requirements.txt")
    monkeypatch.setattr(software, "version", lambda name: installed.get(name, pins.get(name)))
    finding = only(software.packages())
    assert finding.level == "warn"
    assert f"matplotlib 3.0.0 (pinned {pins['matplotlib']})" in finding.text
    assert "torch" not in finding.text


def test_a_kernel_that_breaks_widgets_fails(monkeypatch):
    monkeypatch.setattr(software, "version", lambda name: "7.0.1")
    assert next(software.packages()).level == "fail"


@pytest.mark.parametrize(
    ("cards", "links", "level", "says"),
    [
        ([], [], "ok", "every check runs"),
        ([H200], [], "warn", "gloo on the CPU"),
        ([H200, H200], ["NV18"], "ok", "NVLink"),
        ([H200, H200], ["SYS"], "warn", "not all NVLink"),
    ],
    ids=["none", "one", "two with NVLink", "two without"],
)
def test_gpus_and_links_are_put_into_words(monkeypatch, cards, links, level, says):
    monkeypatch.setattr(machine, "cards", lambda: cards)
    monkeypatch.setattr(machine, "links", lambda: links)
    last = list(hardware.graphics())[-1]
    assert (last.level, says in last.text) == (level, True)


def test_links_are_read_from_the_matrix_that_nvidia_smi_prints(monkeypatch):
    matrix = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tNV18\tSYS\t0-31\nGPU1\tNV18\t X \tSYS\t0-31"
    monkeypatch.setattr(machine, "nvidia_smi", lambda *args: matrix)
    monkeypatch.setattr(machine, "cards", lambda: [H200] * 3)
    assert machine.links() == ["NV18", "SYS"]


def test_64_megabytes_of_shared_memory_name_the_option(monkeypatch):
    size = type("size", (), {"f_blocks": 16384, "f_frsize": 4096})
    monkeypatch.setattr("os.statvfs", lambda folder: size)
    monkeypatch.setattr("sys.platform", "linux")
    finding = only(system.shared_memory(tempfile.gettempdir()))
    assert finding.level == "warn"
    assert "64 MiB" in finding.text
    assert "--shm-size=1g" in finding.text


def test_a_host_name_that_does_not_resolve_does_not_matter(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "nowhere.invalid")
    monkeypatch.setattr(system, "_address", lambda name: None)
    finding = only(system.host_name())
    assert finding.level == "ok"
    assert "nowhere.invalid does not resolve" in finding.text


def test_a_name_server_that_never_answers_costs_no_more_than_the_limit(monkeypatch):
    monkeypatch.setattr("socket.gethostbyname", lambda name: time.sleep(30))
    begin_s = time.monotonic()
    assert system._address("slow.invalid", timeout_s=0.1) is None
    assert time.monotonic() - begin_s < 10


def test_ranks_that_never_answer_fail_and_are_ended(monkeypatch):
    probing = probe.Probe(limit_s=0.5, module="this")
    probing.process.kill()
    probing.process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    finding = only(probing.findings())
    assert finding.level == "fail"
    assert "no all-reduce within 0.5 s" in finding.text
    assert probing.process.returncode is not None


def test_ranks_that_fail_say_why():
    finding = only(probe.Probe(60, module="tpcourse.there_is_no_such_module").findings())
    assert finding.level == "fail"
    assert "there_is_no_such_module" in finding.text


@pytest.fixture
def left_over(tmp_path):
    """A process that looks like a fork server of ours whose owner is gone, and one that only has a similar name."""
    script = "import time; time.sleep(120)"
    socket = tmp_path / f"tpcourse-{os.getuid()}-server-gone" / "socket"
    ours = subprocess.Popen([sys.executable, "-c", script, "-m", "tpcourse.ranks.server", str(socket)])
    other = subprocess.Popen([sys.executable, "-c", script, "tpcourse.ranks.server", str(socket)])
    yield ours, other
    for process in (ours, other):
        process.kill()
        process.wait()


def test_leftovers_are_listed_and_ended_only_when_asked_and_only_ours(left_over):
    ours, other = left_over
    assert str(ours.pid) in only(leftovers()).text
    assert ours.poll() is None
    assert str(ours.pid) in only(leftovers(clean=True)).text
    ours.wait(10)
    assert other.poll() is None


def test_a_server_whose_owner_runs_is_no_leftover(fork_server):
    assert only(leftovers()).level == "ok"
