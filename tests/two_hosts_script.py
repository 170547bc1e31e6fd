"""What `test_two_hosts` runs as host alpha: engines by one of ipyparallel's launchers, mistakes, and a cut cable.

`python -m tests.two_hosts_script ssh|mpi FOLDER` prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ipyparallel
from traitlets.config import Config

from tpcourse.cli.two_hosts import ALPHA, BETA, TwoHosts, end_with_parent, run
from tpcourse.ranks import RanksError, start_ranks

PATIENCE_S = 5
PASSED = ("PYTHONPATH", "IPYTHONDIR", "OMP_NUM_THREADS", "IPP_CONNECTION_INFO")
SSHD = """HostKey {0}/host
AuthorizedKeysFile {0}/key.pub
StrictModes no
UsePAM no
UseDNS no
PidFile none
PermitRootLogin yes
MaxStartups 100
Subsystem sftp internal-sftp
"""
SSH = """Host *
    IdentityFile {0}/key
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
    BatchMode yes
"""


def serve_ssh(hosts: TwoHosts, folder: Path) -> list[str]:
    """An SSH server on each host, keys and settings in `folder`; returns the options of ssh that use them."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")  # seen by nobody else; sshd wants a folder there
    Path("/run/sshd").mkdir()
    for name in ("host", "key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    (folder / "sshd").write_text(SSHD.format(folder))
    (folder / "ssh").write_text(SSH.format(folder))
    server = ["/usr/sbin/sshd", "-D", "-f", str(folder / "sshd")]
    subprocess.Popen(server)
    subprocess.Popen(hosts.on_beta(*server))
    options = ["-F", str(folder / "ssh")]
    for address in (ALPHA, BETA):
        until(lambda where=address: subprocess.run(["ssh", *options, where, "true"]).returncode == 0)
    return options


def until(done: Any, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not done() and time.monotonic() < end:
        time.sleep(0.1)


def settings(launcher: str, ssh: list[str], folder: Path) -> Config:
    """What a person would write into ipcluster_config.py."""
    c = Config()
    c.Cluster.engine_launcher_class = launcher
    c.EngineLauncher.environment = {
        "PYTHONPATH": os.environ["PYTHONPATH"], "IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    c.SSHLauncher.ssh_args = c.SSHLauncher.scp_args = ssh
    c.SSHLauncher.remote_python = sys.executable
    c.SSHEngineSetLauncher.engines = {BETA: 1, ALPHA: 1}
    c.SSHEngineSetLauncher.delay = 0
    if launcher == "mpi":
        agent = ["--mca", "plm_rsh_agent", f"ssh {' '.join(ssh)}", "--mca", "oob_tcp_if_include", f"{ALPHA}/24"]
        passed = [word for name in PASSED for word in ("-x", name)]  # Open MPI hands on only what it is told to
        c.MPILauncher.mpi_args = ["--allow-run-as-root", "--host", f"{BETA}:2,{ALPHA}:2", *agent, *passed]
    c.Cluster.controller_args = ["--HeartMonitor.period=500"]
    return c


def error_of(ranks: Any, cell: str) -> dict[str, Any]:
    """What a cell raised, and after how many seconds."""
    begin_s = time.monotonic()
    try:
        ranks.run_cell(cell)
    except RanksError as error:
        return {"name": type(error).__name__, "text": str(error), "seconds": time.monotonic() - begin_s}
    return {"name": None, "text": "", "seconds": 0.0}


def total(ranks: Any) -> list[float]:
    """An all-reduce over every rank."""
    ranks.run_cell("x = torch.full((3,), float(rank + 1))\ndist.all_reduce(x)\nx = x[0].item()")
    return ranks["x"]


def with_a_cut_cable(hosts: TwoHosts, ranks: Any, folder: Path) -> dict[str, Any]:
    """The cable goes in the middle of a cell that sums again and again."""
    mark = folder / "sums"
    cell = f"for n in range(10**6):\n    dist.all_reduce(torch.ones(3))\n    open({str(mark)!r}, 'w').write(str(n))\n"

    def cut() -> None:
        until(lambda: mark.is_file() and mark.read_text() > "0")
        hosts.cut()

    threading.Thread(target=cut).start()
    return error_of(ranks, cell)


def lesson(hosts: TwoHosts, cluster: Any, launcher: str, folder: Path) -> dict[str, Any]:
    ranks = start_ranks(cluster=cluster, patience=PATIENCE_S, backend="gloo")
    told: dict[str, Any] = {"hosts": ranks.cluster.hosts, "total": total(ranks)}
    told["deadlock"] = error_of(ranks, "if rank != 1:\n    dist.all_reduce(torch.ones(3))")
    told["after"] = total(ranks)
    if launcher == "ssh":
        ranks.stop()
        again = start_ranks(cluster=cluster, patience=PATIENCE_S, backend="gloo")
        told["again"] = total(again)
        return told
    told["cut"] = with_a_cut_cable(hosts, ranks, folder)
    told["stopped"] = error_of(ranks, "1")
    left = start_ranks(cluster=cluster, patience=PATIENCE_S, backend="gloo")
    told["left"] = {"hosts": left.cluster.hosts, "total": total(left)}
    return told


def main(launcher: str, folder: Path) -> None:
    end_with_parent()
    with TwoHosts() as hosts:
        c = settings(launcher, serve_ssh(hosts, folder), folder)
        cluster = ipyparallel.Cluster(
            n=2 if launcher == "ssh" else 4, config=c, controller_ip=ALPHA, profile_dir=str(folder / "profile"),
            load_profile=False, log_level=40, delay=0,
        )  # fmt: skip
        cluster.start_cluster_sync()
        print(json.dumps(lesson(hosts, cluster, launcher, folder)), flush=True)
        os._exit(0)  # takes engines, servers, hosts and cable with it


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
