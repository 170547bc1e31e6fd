"""A cluster that somebody else started: what may be passed, in which order its engines become ranks, what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_watch_simulator import Call, Machine, same

from tests.test_ranks import script
from tpcourse.ranks import RanksError, start_ranks
from tpcourse.ranks.api import running
from tpcourse.ranks.hosts import _cannot, _host_names, _natural
from tpcourse.watch import diagnose

SUM = Call("all_reduce", 9, reduction="sum")


def test_hosts_are_ordered_as_people_count():
    assert sorted(["node10", "node2", "a", "node2b"], key=_natural) == ["a", "node2", "node2b", "node10"]


def test_hosts_with_one_name_in_common_are_told_apart_by_their_addresses():
    hellos = {
        0: {"host": "node", "addresses": ["10.0.0.1"]},
        1: {"host": "node", "addresses": ["10.0.0.2"]},
        2: {"host": "other", "addresses": []},
    }
    assert _host_names(hellos) == {0: "node (10.0.0.1)", 1: "node (10.0.0.2)", 2: "other"}


@pytest.fixture
def none_running():
    """Ranks that other tests left running would be returned as they are."""
    for ranks in list(running()):
        ranks.stop()


@pytest.mark.usefixtures("none_running")
def test_a_name_that_is_neither_file_nor_running_profile_is_told_with_the_way_to_start_one(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    for name in ("nothing.json", "no_such_profile"):
        with pytest.raises(RanksError, match=f"cluster='{name}' is neither a connection file nor a profile"):
            start_ranks(cluster=name)


@pytest.mark.usefixtures("none_running")
def test_a_cluster_that_was_not_started_is_told_so(tmp_path):
    import ipyparallel

    cluster = ipyparallel.Cluster(n=2, profile_dir=str(tmp_path), log_level=40)
    with pytest.raises(RanksError, match=r"has not been started: cluster.start_cluster_sync"):
        start_ranks(cluster=cluster)


def test_ranks_that_are_running_are_not_taken_for_those_of_a_cluster(shared_ranks):
    with pytest.raises(ValueError, match=r"has 4 ranks .*; call ranks.stop\(\) first to start 4 ranks on that cluster"):
        start_ranks(cluster="class")
    assert start_ranks() is shared_ranks


def test_an_engine_without_the_course_is_told_what_it_needs():
    error = RuntimeError()
    error.ename, error.evalue = "ModuleNotFoundError", "No module named 'tpcourse'"
    assert "engine 3 of the cluster cannot be a rank" in _cannot(3, error)
    assert "must be installed where the engines run" in _cannot(3, error)


def test_a_running_profile_s_engines_become_ranks_and_their_engines_outlive_them(fork_server, tmp_path):
    process = script(
        f"""
        import os
        from pathlib import Path
        from tpcourse.ranks.cluster import LocalCluster
        other = LocalCluster()
        other.num_gpus()
        other.start(2)
        os.environ["IPYTHONDIR"] = {str(tmp_path)!r}
        home = Path({str(tmp_path)!r}, "profile_class")
        home.mkdir()
        (home / "security").symlink_to(other.session.folder / "security")
        for _ in range(2):
            ranks = start_ranks(cluster="class", backend="gloo")
            assert start_ranks(cluster="class") is ranks
            ranks.run_cell("x = torch.ones(1); dist.all_reduce(x); x = x.item()")
            print(ranks["x"], flush=True)
            try:
                ranks.restart()
            except RuntimeError as error:
                print(error)
            ranks.stop()
        """
    )
    out, _ = process.communicate(timeout=90)
    refused = "ranks of a cluster that was passed in are ended by whoever started it"
    assert out.splitlines() == ["[2.0, 2.0]", refused] * 2


def on_hosts(states, *hosts):
    return [{**state, "host": host} for state, host in zip(states, hosts, strict=True)]


def test_a_host_of_which_no_rank_answers_is_named_and_the_table_has_a_column_for_hosts():
    states = Machine(same(4, SUM, r2=[], r3=[])).states()
    for rank in (2, 3):
        states[rank].update(state="silent", events=[], line="line 5")
    text = str(diagnose(on_hosts(states, "a", "a", "b", "b")))
    first = " ".join(text.split("\n\n")[0].split())
    assert first == (
        "host b does not answer: ranks 2-3 are there, last seen at line 5; "
        "ranks 0-1 wait for them in all_reduce #1 on world (line 9)."
    )
    assert "  ranks   host   last finished   now" in text
    assert "  2-3     b      not known       does not answer, last seen at line 5" in text
    assert "See whether that host runs and its network is up" in text


def test_a_rank_whose_last_message_was_lost_with_its_host_waits_for_it_too():
    states = Machine(same(4, SUM, SUM, r2=[SUM], r3=[SUM])).states()
    states[1]["events"] = [replace(states[1]["events"][0], end_s=None)]
    for rank in (2, 3):
        states[rank].update(state="silent", line="line 5")
    first = " ".join(str(diagnose(on_hosts(states, "a", "a", "b", "b"))).split("\n\n")[0].split())
    assert first == (
        "host b does not answer: ranks 2-3 are there, last seen at line 5; "
        "rank 0 waits for them in all_reduce #2 on world (line 9); "
        "rank 1 waits for them in all_reduce #1 on world (line 9)."
    )


def test_one_silent_rank_of_a_host_is_no_lost_host():
    states = Machine(same(4, SUM, r3=[])).states()
    states[3].update(state="silent", events=[])
    report = diagnose(on_hosts(states, "a", "a", "b", "b"))
    assert report.kind == "silent" and "host b" not in report.sentence


def test_ranks_of_one_host_are_told_without_its_name():
    states = Machine(same(2, SUM, r1=[replace(SUM, shape=(2, 4))])).states()
    assert "host" not in str(diagnose(states))
