"""Ranks on two hosts: started over SSH and over MPI, a deadlock across, and a host that is cut off.

The hosts are network namespaces, so this needs root; elsewhere it is skipped, with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.two_hosts_script import PATIENCE_S
from tpcourse.cli.two_hosts import command, missing

ROOT = Path(__file__).resolve().parents[1]
WHY_NOT = missing(("ssh", "ssh-keygen", "sshd", "mpiexec", "mount"))
pytestmark = [pytest.mark.stage("hangs"), pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
LIMIT_S = 300


def told_by(launcher: str) -> dict[str, Any]:
    """What happened on two hosts whose engines `launcher` started; nothing of them is left."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    reads, ours = os.pipe()  # the script ends when our end is closed, by whatever
    try:
        with tempfile.TemporaryDirectory(prefix="tpcourse-hosts-") as folder:
            words = command(sys.executable, "-m", "tests.two_hosts_script", launcher, folder)
            done = subprocess.run(
                words, cwd=ROOT, env=env, stdin=reads, capture_output=True, text=True, timeout=LIMIT_S
            )
    finally:
        os.close(reads)
        os.close(ours)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def over_ssh() -> dict[str, Any]:
    return told_by("ssh")


@pytest.fixture(scope="module")
def over_mpi() -> dict[str, Any]:
    return told_by("mpi")


def test_engines_started_over_ssh_become_ranks_ordered_by_host_that_sum_across(over_ssh):
    assert over_ssh["hosts"] == ["alpha", "beta"]
    assert over_ssh["total"] == [3.0, 3.0]


def test_engines_started_over_mpi_become_ranks_ordered_by_host_that_sum_across(over_mpi):
    assert over_mpi["hosts"] == ["alpha", "alpha", "beta", "beta"]
    assert over_mpi["total"] == [10.0] * 4


def test_a_deadlock_across_hosts_is_reported_with_their_names_and_the_next_cell_works(over_ssh, over_mpi):
    for told, waits in ((over_ssh, "rank 0 waits"), (over_mpi, "ranks 0, 2-3 wait")):
        assert told["deadlock"]["name"] == "RanksStuck"
        text = told["deadlock"]["text"]
        assert "rank 1 never called all_reduce" in text and waits in " ".join(text.split())
        assert "host " in text and "alpha" in text and "beta" in text
        assert "every rank kept its variables. The next cell works." in text
        assert told["after"] == told["total"]


def test_ranks_that_were_stopped_leave_their_engines_to_the_next_start(over_ssh):
    assert over_ssh["again"] == [3.0, 3.0]


def test_a_host_that_is_cut_off_in_the_middle_is_named_within_patience_and_the_notebook_goes_on(over_mpi):
    told = over_mpi["cut"]
    text = " ".join(told["text"].split())
    assert told["name"] in ("RanksStuck", "RankDied")
    assert "host beta does not answer: ranks 2-3 are there" in text
    each = [f"rank {rank} waits for them in all_reduce" in text for rank in (0, 1)]  # a cut may part two sums
    assert all(each) or "ranks 0-1 wait for them in all_reduce" in text
    assert f"No progress for {PATIENCE_S} s." in text
    assert "start_ranks(cluster=...) takes the engines that answer" in text
    assert "these ranks were stopped" in over_mpi["stopped"]["text"]
    assert over_mpi["left"] == {"hosts": ["alpha", "alpha"], "total": [3.0, 3.0]}


def test_a_process_whose_parent_is_gone_ends_with_its_hosts():
    """What a killed test run leaves: nothing."""
    reads, ours = os.pipe()
    code = (
        "from tpcourse.cli.two_hosts import TwoHosts, end_with_parent\nimport time\nend_with_parent()\n"
        "with TwoHosts():\n    print('ready', flush=True)\n    time.sleep(600)"
    )
    words = command(sys.executable, "-c", code)
    with subprocess.Popen(words, cwd=ROOT, stdin=reads, stdout=subprocess.PIPE, text=True) as process:
        os.close(reads)
        assert process.stdout.readline() == "ready\n"
        below = psutil.Process(process.pid).children(recursive=True)
        os.close(ours)
        process.wait(60)
    assert len(below) >= 2
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive
