"""`tpcourse bench link`: figures follow from what was measured, and the recorded run is what the lesson says of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from rig import run_ranks
from test_draw_helpers import faults, marked

from tpcourse import costs, draw
from tpcourse.cli import CommandError, two_hosts
from tpcourse.cli.bench import link, link_steps
from tpcourse.cli.two_hosts import command, missing

SIZES = [4096 * 4**step for step in range(6)]
CABLE = costs.Link("cable", 150e-6, 120e6)


def step(tokens, **ms):
    return {"tokens": tokens, "tensor_ms": 0.0, "data_ms": 0.0, **{f"{way}_ms": value for way, value in ms.items()}}


def found():
    points = [(2, n, costs.seconds("all_reduce", n, 2, CABLE, "ring")) for n in SIZES]
    steps = [
        step(64, alone=10.0, tensor_wire=5.0, data_wire=30.0),
        step(1024, alone=100.0, tensor_wire=40.0, data_wire=30.0),
    ]
    return {"links": {"1 Gb/s": {"measured": points, "steps": steps}}, "model": {"L": 2}, "has_netem": False}


def test_alpha_and_beta_of_a_cable_are_found_again_and_ratios_are_to_a_rank_alone():
    result = link.summary(found())
    one = result.figures["links"]["1 Gb/s"]
    assert (one["alpha_s"], one["bytes_per_s"]) == pytest.approx((150e-6, 120e6), rel=1e-3)
    assert [step["tensor_ratio"] for step in one["steps"]] == pytest.approx([0.5, 0.4])
    assert [step["data_ratio"] for step in one["steps"]] == pytest.approx([3.0, 0.3])
    assert "1 Gb/s: alpha 150 us, 0.96 Gb/s" in result.table()
    json.dumps(result.figures)


def test_a_machine_that_cannot_play_two_hosts_is_told_what_is_missing(monkeypatch):
    monkeypatch.setattr(link, "missing", lambda programs: "not installed: tc")
    with pytest.raises(CommandError, match="not installed: tc. The recorded run is in"):
        link.measure(1)


@pytest.mark.parametrize(
    ("uid", "programs", "says"),
    [(1000, (), "need Linux and root"), (0, ("no_such_program",), "not installed: .*no_such_program .Debian: ip")],
)
def test_what_is_missing_is_said_in_a_sentence(monkeypatch, uid, programs, says):
    import re

    monkeypatch.setattr(two_hosts.sys, "platform", "linux")
    monkeypatch.setattr(two_hosts.os, "geteuid", lambda: uid)
    assert re.search(says, two_hosts.missing(programs) or "")


def _shares(rank, group):
    """Each way's collectives, by name and bytes, and that a step of each gives gradients."""
    from ledger_help import fresh_ledger

    from tpcourse.ledger import ledger

    link_steps.CONFIG = link_steps.GPTConfig(V=16, T=4, D=8, H=2, L=1)
    calls = {}
    with fresh_ledger():
        for name, model in (("tensor", link_steps._model(tp=group)), ("data", link_steps._model())):
            if name == "data":
                link_steps.DataParallel(model, dp=group)
            step = link_steps._step(model, 2)
            with ledger() as log:
                step()
            calls[name] = sum(event.op == "all_reduce" for event in log.events)
    return calls


def test_tensor_parallel_sends_in_every_layer_and_data_parallel_once():
    for calls in run_ranks(_shares, 2):
        assert calls["data"] == 1
        assert calls["tensor"] >= 4 + 2


CABLES = """
import socket, subprocess, sys
from tpcourse.cli.two_hosts import BETA, TwoHosts
SERVE = "import socket; s = socket.create_server(('', 0))\\n"
SERVE += "print(socket.gethostname(), s.getsockname()[1], flush=True)\\n"
SERVE += "while True: s.accept()"
def reach(port):
    try:
        socket.create_connection((BETA, port), timeout=2).close()
        return "reached"
    except OSError:
        return "cut off"
with TwoHosts() as hosts:
    server = subprocess.Popen(hosts.on_beta(sys.executable, "-c", SERVE), stdout=subprocess.PIPE, text=True)
    name, port = server.stdout.readline().split()
    print(name)
    hosts.shape("1gbit")
    print(subprocess.run(["tc", "qdisc", "show", "dev", "cable0"], capture_output=True, text=True).stdout.split()[:2])
    print(reach(int(port)))
    hosts.shape(None)
    hosts.cut()
    print(reach(int(port)))
"""


def test_a_cable_is_shaped_and_one_that_is_cut_carries_nothing():
    if why := missing(("tc",)):
        pytest.skip(why)
    done = subprocess.run(command(sys.executable, "-c", CABLES), capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["beta", "['qdisc', 'tbf']", "reached", "cut off"], done.stderr


def test_the_curves_are_those_of_the_links_and_the_slowest_is_black():
    links = link.summary(found()).figures["links"]
    ax = draw.link_share({"10 Gb/s": links["1 Gb/s"], "1 Gb/s": links["1 Gb/s"]})
    assert [list(line.get_ydata()) for line in marked(ax, "data")] == [[3.0, 0.3]] * 2
    assert [list(line.get_xdata()) for line in marked(ax, "tensor")] == [[64, 1024]] * 2
    assert faults(ax) == []
    with pytest.raises(ValueError, match="0 links"):
        draw.link_share({})


def test_in_the_ratio_of_data_parallelism_the_tokens_stay_and_the_parameters_cancel():
    ratio = costs.gradient_ratio(2, 4096, 989e12, 1.25e9)
    assert ratio == pytest.approx(2 * 989e12 * 1 / (3 * 2 * 4096 * 1.25e9))
    assert costs.gradient_ratio(2, 4 * 4096, 989e12, 1.25e9) == pytest.approx(ratio / 4)
    with pytest.raises(ValueError, match="tokens"):
        costs.gradient_ratio(2, 0, 989e12, 1.25e9)


def test_without_a_recording_there_are_no_links(tmp_path):
    assert costs.recorded_links(tmp_path) == {} and costs.recorded_link(tmp_path) == {}
