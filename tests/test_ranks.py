"""Ranks start, run cells, show what they print, and end with their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tpcourse.ranks import RankError, show, start_ranks
from tpcourse.ranks.api import check_arguments, choose
from tpcourse.ranks.errors import RanksInterrupted, RanksOutOfTime
from tpcourse.ranks.folders import folders, started
from tpcourse.ranks.magic import numbered, parse_line, parse_targets
from tpcourse.ranks.run import uninterrupted

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("ranks", "name"),
    [([2], "rank 2"), ([0, 1, 2], "ranks 0-2"), ([0, 2], "ranks 0, 2"), ([0, 1, 2, 3], "all ranks")],
)
def test_ranks_are_named_in_words(ranks, name):
    assert show.names(ranks, 4) == name


def test_equal_outputs_are_shown_once_and_others_in_rank_order(shared_ranks, capsys):
    cell = "import time\ntime.sleep(0.1 * (3 - rank))\nprint('same' if rank in (0, 2) else f'from {rank}')"
    shared_ranks.run_cell(cell)
    assert capsys.readouterr().out == "ranks 0, 2: same\nrank 1: from 1\nrank 3: from 3\n"


def test_the_lines_of_one_rank_hang_under_its_name(shared_ranks, capsys):
    shared_ranks.run_cell("print('first')\nprint('second')", targets=1)
    assert capsys.readouterr().out == "rank 1: first\n        second\n"


def test_a_dict_comes_back_in_its_own_order(shared_ranks):
    shared_ranks.run_cell("pulled = {'b': 1, 'a': {'d': 2, 'c': [3]}}")
    assert [list(found.items()) for found in shared_ranks["pulled"]] == [[("b", 1), ("a", {"d": 2, "c": [3]})]] * 4
    assert shared_ranks.run(lambda: {"b": 1, "a": 2})[0] == {"b": 1, "a": 2}


def test_an_interrupt_is_held_back_while_the_client_works():
    after = []
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117, PT012
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            after.append("still here")
    assert after == ["still here"]


def test_the_last_value_of_a_cell_is_shown_and_a_semicolon_hides_it(shared_ranks, capsys):
    shared_ranks.run_cell("40 + 2")
    shared_ranks.run_cell("40 + 2;")
    assert capsys.readouterr().out == "all ranks: 42\n"


def test_a_flood_of_output_is_cut_with_a_line_that_says_so(shared_ranks, capsys):
    shared_ranks.run_cell("for _ in range(100_000):\n    print('x' * 80)", targets=0)
    out = capsys.readouterr().out
    assert len(out) < 200_000
    assert "more characters were cut (a cell shows 20000 a rank)" in out


def test_figures_of_ranks_are_kept(shared_ranks, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, **_: shown.append(bundle))
    shared_ranks.run_cell(
        "import matplotlib.pyplot as plt\nfigure = plt.figure(figsize=(1, 1))\nplt.plot([0, 1])\nplt.show()", targets=0
    )
    assert any("image/png" in bundle for bundle in shown)


def test_equal_errors_are_told_once_with_the_learners_line(shared_ranks):
    with pytest.raises(RankError) as caught:
        shared_ranks.run_cell("def half(x):\n    return x / 0\n\nhalf(1)")
    assert str(caught.value) == (
        "all ranks raised ZeroDivisionError: division by zero\n    line 4: half(1)\n    line 2: return x / 0"
    )


def test_a_syntax_error_is_told_with_its_line(shared_ranks):
    with pytest.raises(RankError, match=r"all ranks raised SyntaxError: .*\n    line 2: x ="):
        shared_ranks.run_cell("y = 1\nx =")


def test_lines_are_numbered_as_the_notebook_shows_them():
    assert numbered("x = 1\n").split("\n")[1] == "x = 1"
    assert numbered("%%time\nx = 1").startswith("%%time")


def test_a_loop_without_an_end_is_stopped_where_there_is_a_limit_and_the_ranks_keep_their_names(shared_ranks):
    shared_ranks.run_cell("kept = rank")
    with shared_ranks.within(3), pytest.raises(RanksOutOfTime) as caught:
        shared_ranks.run_cell("while rank == 1:\n    pass")
    assert "line" in str(caught.value) and not isinstance(caught.value, RanksInterrupted)
    assert shared_ranks["kept"] == [0, 1, 2, 3]


NUMBERS = """
from tpcourse.ranks import magic

class Echo:
    def run_cell(self, source, cell, targets, live):
        print(f"cell {cell}")

magic.register(lambda: [Echo()])
"""


def test_cells_have_the_numbers_that_the_notebook_shows_beside_them():
    nb = new_notebook(cells=[new_code_cell(source) for source in (NUMBERS, "%%px\nx = 1", "2", "%px x = 2")])
    NotebookClient(nb, kernel_name="python3", timeout=60).execute()
    for cell in (nb.cells[1], nb.cells[3]):
        assert cell.outputs[0].text == f"cell {cell.execution_count}\n"
    assert nb.cells[3].execution_count == 4


def test_an_error_is_rendered_without_a_traceback():
    assert RankError("rank 1 raised X")._render_traceback_() == ["RankError: rank 1 raised X"]


def test_a_value_that_cannot_travel_is_told_kindly(shared_ranks):
    shared_ranks.run_cell("import threading\nlock = threading.Lock()")
    with pytest.raises(RankError, match="a lock cannot travel from a rank to the notebook"):
        shared_ranks["lock"]


def test_variables_travel_both_ways(shared_ranks):
    shared_ranks.push({"scale": 3})
    shared_ranks.run_cell("scaled = torch.full((2,), float(rank * scale), requires_grad=True)")
    assert [value.tolist() for value in shared_ranks["scaled"]] == [[3.0 * rank] * 2 for rank in range(4)]


def test_a_missing_variable_is_named(shared_ranks):
    with pytest.raises(RankError, match="no variable named 'nothing_here' on rank 0"):
        shared_ranks["nothing_here"]


def test_the_same_call_again_returns_the_running_ranks(shared_ranks):
    assert start_ranks() is shared_ranks
    with pytest.raises(ValueError, match=r"already has 4 ranks .* call ranks.stop\(\) first to start 2 ranks"):
        start_ranks(2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, None, 20), "n=0: the number of ranks is a whole number from 1 to 64"),
        ((4.0, None, 20), "n=4.0"),
        ((65, None, 20), "n=65"),
        ((4, "mpi", 20), "backend='mpi': 'nccl' .GPUs. or 'gloo' .CPU."),
        ((4, None, 0), "patience=0: a number of seconds from 0.5 to 600"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        check_arguments(*arguments)


def test_more_ranks_than_gpus_is_refused_with_both_numbers_and_the_ways_out():
    says = r"4 ranks on NCCL need 4 GPUs, one each, and there are 2. Ways out: start_ranks\(2\)"
    with pytest.raises(ValueError, match=says):
        choose(4, None, 2)
    with pytest.raises(ValueError, match=r"start_ranks\(4, backend='gloo'\) on the CPU"):
        choose(4, "nccl", 0)


def test_ranks_and_backend_follow_the_gpus():
    assert choose(None, None, 0) == (4, "gloo")
    assert choose(None, None, 1) == (4, "gloo")
    assert choose(None, None, 2) == (2, "nccl")
    assert choose(3, None, 8) == (3, "nccl")
    assert choose(4, "gloo", 2) == (4, "gloo")


def test_targets_are_read_and_bad_ones_named():
    assert parse_targets("0,2-3", 4) == [0, 2, 3]
    assert parse_targets(2, 4) == [2]
    assert parse_line("--targets 0,2") == ("0,2", "")
    with pytest.raises(ValueError, match="targets '4': there are ranks 0 to 3"):
        parse_targets("4", 4)
    with pytest.raises(ValueError, match="%%px does not know '--block'"):
        parse_line("--block")


def script(body: str, **env: str) -> subprocess.Popen:
    """A Python process that runs `body`; its output can be read line by line."""
    code = "from tpcourse import start_ranks\n" + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | env
    )


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The process ids that a script printed as a list."""
    return [int(pid) for pid in process.stdout.readline().strip(" []\n").split(",")]


def all_gone(pids: list[int], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while any(started(pid) is not None for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(started(pid) is not None for pid in pids)


OWNERS = {
    "ends normally": "pass",
    "raises": "raise SystemExit(3)",
    "exits at once": "import os; os._exit(1)",
    "is killed": "import os; os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("way", OWNERS)
def test_nothing_is_left_when_the_owner(way, fork_server):
    body = f"""
    ranks = start_ranks(2)
    ranks.run_cell('import subprocess\\nchild = subprocess.Popen(["sleep", "600"]).pid')
    print([*ranks.cluster.pids, *ranks['child']])
    {OWNERS[way]}
    """
    process = script(body)
    pids = ranks_of(process)
    process.wait(30)
    assert all_gone(pids), "processes outlived their owner"


@pytest.fixture
def with_own_server():
    """A notebook that started its own fork server: its process, its ranks' ids, the server's id."""
    body = """
    import time
    ranks = start_ranks(2)
    from tpcourse.ranks.spawn import own_server
    print([*ranks.cluster.pids, own_server().process.pid])
    time.sleep(600)
    """
    process = script(body, TPCOURSE_SERVER="")
    *pids, server = ranks_of(process)
    yield process, pids, server
    process.kill()


def test_nothing_is_left_when_a_notebook_with_its_own_server_is_killed(with_own_server):
    process, pids, server = with_own_server
    group = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.kill()
    assert all_gone([*pids, server, *group])


def test_nothing_is_left_when_the_fork_server_is_killed(with_own_server):
    _, pids, server = with_own_server
    os.kill(server, signal.SIGKILL)
    assert all_gone(pids)


def test_ranks_that_were_stopped_or_lost_their_server_say_so_and_new_ones_start():
    process = script(
        """
        import os
        from tpcourse.ranks.spawn import own_server
        first = start_ranks(1)
        first.stop()
        second = start_ranks(1)
        os.kill(own_server().process.pid, 9)
        for ranks in (first, second):
            try:
                ranks.run_cell("import time; time.sleep(0.5)")
            except RuntimeError as error:
                print(error)
        start_ranks(1).run_cell("print(40 + 2)")
        """,
        TPCOURSE_SERVER="",
    )
    out, _ = process.communicate(timeout=90)
    assert out.splitlines() == [
        "these ranks were stopped; start_ranks() starts new ones",
        "the fork server of the ranks has ended; start_ranks() starts new ranks",
        "rank 0: 42",
    ]


def test_a_repair_that_was_interrupted_is_done_before_the_next_cell(shared_ranks):
    shared_ranks.meeting.cluster.call_all("leave")
    shared_ranks.meeting.is_broken = True
    shared_ranks.run_cell("x = torch.ones(1)\ndist.all_reduce(x)\nx = x.item()")
    assert shared_ranks["x"] == [4.0] * 4


def test_a_notebook_leaves_nothing_to_the_next(fork_server):
    """Default dtype, seed, folder, environment and a patched torch stay in the processes that they were set in."""
    dirty = script(
        """
        ranks = start_ranks(2)
        ranks.run_cell('''
        import os
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(1)
        os.chdir("/")
        os.environ["LEFT_BEHIND"] = "1"
        torch.ones = torch.zeros
        '''.replace("        ", ""))
        """
    )
    assert dirty.wait(60) == 0
    clean = script(
        """
        ranks = start_ranks(2)
        state = "torch.get_default_dtype() == torch.float32, os.getcwd() != '/', 'LEFT_BEHIND' in os.environ"
        ranks.run_cell("import os\\nstate = " + state + ", torch.ones(1).item()")
        print(ranks["state"][0])
        """
    )
    assert clean.stdout.readline().strip() == "(True, True, False, 1.0)"
    assert clean.wait(60) == 0


def test_two_notebooks_on_one_machine_do_not_meet(fork_server):
    body = """
    import sys
    ranks = start_ranks(2)
    ranks.push({"mine": MINE})
    print(1)
    sys.stdin.readline() if False else None
    ranks.run_cell("x = torch.ones(1) * mine; dist.all_reduce(x); x = x.item()")
    print(ranks["x"])
    """
    first, second = script(body.replace("MINE", "3")), script(body.replace("MINE", "5"))
    outs = [process.communicate(timeout=60)[0].splitlines()[1] for process in (first, second)]
    assert outs == ["[6.0, 6.0]", "[10.0, 10.0]"]


def test_private_files_are_private(shared_ranks):
    folder = shared_ranks.cluster.session.folder
    assert folder.stat().st_mode & 0o077 == 0
    loose = {path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077}
    assert loose <= {"README"}, "only the note that IPython puts into its profile folder"


def test_a_folder_of_a_dead_owner_is_swept(fork_server):
    process = script("ranks = start_ranks(1)\nimport os; print([ranks.cluster.pids[0]], flush=True); os._exit(0)")
    ranks_of(process)
    process.wait(30)
    script("start_ranks(1)").wait(60)
    assert not [folder for folder, _, alive in folders() if not alive]


def test_the_ranks_listen_on_no_network_but_loopback(shared_ranks):
    listening = [
        connection.laddr.ip
        for pid in shared_ranks.cluster.pids
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert set(listening) <= {"127.0.0.1", "::1"}


def test_restart_gives_fresh_processes(shared_ranks):
    before = list(shared_ranks.cluster.pids)
    shared_ranks.run_cell("left = 1")
    shared_ranks.restart()
    assert not set(before) & set(shared_ranks.cluster.pids)
    with pytest.raises(RankError, match="no variable named 'left'"):
        shared_ranks["left"]


def test_the_engines_of_a_given_connection_file_become_ranks(fork_server):
    """The file is that of a controller and engines which somebody else started, here another session of the server."""
    process = script(
        """
        from tpcourse.ranks.cluster import LocalCluster
        other = LocalCluster()
        other.num_gpus()
        other.start(2)
        ranks = start_ranks(cluster=other.session.folder / "security" / "ipcontroller-client.json", backend="gloo")
        ranks.run_cell("x = torch.ones(1); dist.all_reduce(x); x = x.item()")
        print(ranks["x"])
        """
    )
    assert process.stdout.readline().strip() == "[2.0, 2.0]"
    assert process.wait(60) == 0
