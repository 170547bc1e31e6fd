"""Many people on one machine: which GPUs ranks get, what is said of a full one, how many ranks a person may have."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.test_ranks import script
from tpcourse.cli.doctor.sharing import sharing
from tpcourse.ranks import caps, children, devices, nvidia, start_ranks
from tpcourse.ranks.devices import check_devices, check_found, check_free, explained, narrowed, visible

FREE = nvidia.Gpu("0", "GPU-aaaa", 81920, 1000, False)
FULL = nvidia.Gpu("1", "GPU-bbbb", 81920, 81500, False, (4123, 991))
TAKEN = nvidia.Gpu("2", "GPU-cccc", 81920, 3000, True, (77,))


def shows(value: str | None) -> dict[str, str]:
    return {} if value is None else {"CUDA_VISIBLE_DEVICES": value}


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, None),
        ("", []),
        ("-1", []),
        ("3", ["3"]),
        ("2, 0", ["2", "0"]),
        ("GPU-4f3a,MIG-77", ["GPU-4f3a", "MIG-77"]),
        ("1,-1,2", ["1"]),
        ("NoDevFiles", []),
    ],
)
def test_the_environment_s_gpus_are_read_as_cuda_reads_them(value, entries):
    assert visible(shows(value)) == entries


@pytest.mark.parametrize(
    ("picked", "value", "leaves"),
    [
        ([1, 3], None, "1,3"),
        ([1, 0], "4,6,7", "6,4"),
        (["GPU-4f3a"], None, "GPU-4f3a"),
        (["GPU-4f"], "GPU-4f3a,GPU-77", "GPU-4f"),
        (["1"], "5,6", "6"),
        ([0], "MIG-77", "MIG-77"),
    ],
)
def test_picked_gpus_are_numbers_among_the_visible_ones_or_identifiers(picked, value, leaves):
    assert narrowed(picked, shows(value)) == shows(leaves)


def test_without_picked_gpus_the_environment_stays_as_it_is():
    assert narrowed(None, shows("2,3")) == shows("2,3")


@pytest.mark.parametrize(
    ("picked", "value", "says"),
    [
        ([2], "4,6", r"there is no GPU 2; visible here \(CUDA_VISIBLE_DEVICES\) are 2: 4, 6"),
        ([0], "", "are 0: none"),
        (["GPU-99"], "GPU-4f3a", "there is no GPU 'GPU-99'"),
        ([-1], None, "there is no GPU -1"),
        ([0, 0], None, "names one GPU twice; NCCL needs a GPU for each rank"),
        ([], None, r"devices=\[\]: a list of GPUs"),
        ([True], None, "a list of GPUs"),
        ("0,1", None, "a list of GPUs"),
        (["MIG-1", "MIG-2"], None, "NCCL does not join several"),
    ],
)
def test_gpus_that_cannot_be_meant_are_refused(picked, value, says):
    with pytest.raises(ValueError, match=says):
        narrowed(picked, shows(value))


def test_a_gpu_that_cuda_does_not_find_is_named():
    with pytest.raises(ValueError, match="CUDA finds 1 of these 2 GPUs; 9 is the first"):
        check_found([0, 9], 1)
    check_found([0, 9], 2)
    check_found(None, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"backend": "gloo", "devices": [0]}, "ranks on gloo use the CPU"),
        ({"n": 3, "devices": [0, 1]}, "n=3 and 2 devices"),
        ({"cluster": "x.json", "devices": [0]}, "on the hosts of a cluster set CUDA_VISIBLE_DEVICES"),
        ({"devices": 2}, "devices=2: a list of GPUs"),
    ],
)
def test_arguments_that_contradict_picked_gpus_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        start_ranks(**arguments)


def test_gpus_are_counted_in_the_environment_of_the_notebook_not_in_the_server_s(monkeypatch):
    """A notebook sets CUDA_VISIBLE_DEVICES after the fork server has started."""
    counted = lambda: len(visible(os.environ) or [])  # noqa: E731
    monkeypatch.setattr("torch.cuda.device_count", counted)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for value, number in (("0,1,2", 3), ("", 0), ("GPU-4f3a", 1)):
        assert children.count_gpus({**os.environ, **shows(value)}) == number


@pytest.fixture
def three_gpus(monkeypatch):
    monkeypatch.setattr(devices, "all_gpus", lambda: [FREE, FULL, TAKEN])


def test_a_full_gpu_is_told_with_its_numbers_and_who_is_on_it(three_gpus):
    says = r"GPU 1 is full: 0.4 of 80 GiB are free, a rank needs 1.5. Processes on it: 4123, 991. Ways out: "
    with pytest.raises(RuntimeError, match=says + r"start_ranks\(2, backend='gloo'\)"):
        check_free({}, 2)
    with pytest.raises(RuntimeError, match="GPU 1 is full"):
        check_free(shows("GPU-bb"), 1)
    check_free({}, 1)
    check_free(shows("0"), 1)


def test_a_taken_gpu_is_told_and_free_ones_are_offered(monkeypatch):
    gpus = [TAKEN, FREE, replace(FREE, index="3", uuid="GPU-dddd")]
    monkeypatch.setattr(devices, "all_gpus", lambda: gpus)
    says = r"GPU 2 is taken: it serves one process at a time. Process on it: 77. .* start_ranks\(devices=\[1, 2\]"
    with pytest.raises(RuntimeError, match=says):
        check_free({}, 3)


def test_gpus_are_read_from_what_nvidia_smi_prints(monkeypatch):
    answers = {
        "--query-compute-apps=gpu_uuid,pid": "GPU-bbbb, 4123\nGPU-bbbb, 991",
        "--query-gpu=index,uuid,memory.total,memory.used,compute_mode": (
            "0, GPU-aaaa, 81920, 1000, Default\n1, GPU-bbbb, 81920, 81500, Default\n"
            "2, GPU-cccc, 81920, 3000, Exclusive_Process\n3, GPU-dddd, [N/A], [N/A], Default"
        ),
    }
    monkeypatch.setattr(nvidia, "nvidia_smi", lambda query, *_: answers[query])
    assert nvidia.all_gpus() == [FREE, FULL, replace(TAKEN, pids=())]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "a GPU is taken"),
        ("CUDA out of memory. Tried to allocate 2.00 MiB", "a GPU is full"),
    ],
)
def test_what_cuda_says_at_the_start_is_put_into_words(error, says):
    assert says in (explained(RuntimeError(error)) or "")
    assert explained(RuntimeError("something else")) is None


@pytest.fixture
def shared_machine(tmp_path, monkeypatch):
    """A machine on which `capped(n)` sets a cap in the file, and `held(n)` ranks of this person run elsewhere."""
    monkeypatch.delenv(caps.VARIABLE, raising=False)
    monkeypatch.setattr(caps, "FILE", tmp_path / "tpcourse.toml")
    return tmp_path


def test_there_is_no_cap_unless_one_is_set(shared_machine):
    assert caps.cap() is None


def test_the_cap_is_read_from_the_file_and_from_the_environment_and_the_smaller_holds(shared_machine, monkeypatch):
    caps.FILE.write_text("ranks_per_person = 4\n")
    assert caps.cap() == caps.Cap(4, str(caps.FILE))
    monkeypatch.setenv(caps.VARIABLE, "2")
    assert caps.cap() == caps.Cap(2, "the environment variable TPCOURSE_RANKS_PER_PERSON")
    monkeypatch.setenv(caps.VARIABLE, "8")
    assert caps.cap().ranks == 4


@pytest.mark.parametrize("line", ["ranks_per_person = 0", "ranks_per_person = 'many'", "ranks_per_person ="])
def test_a_cap_that_cannot_be_read_is_said_with_its_place(shared_machine, line):
    caps.FILE.write_text(line)
    with pytest.raises(ValueError, match=f"{caps.FILE}.*for example"):
        caps.cap()


def test_a_person_without_a_wish_gets_what_the_cap_allows_and_one_with_a_wish_a_sentence(shared_machine, monkeypatch):
    monkeypatch.setattr(caps, "folders", lambda: [(shared_machine, 1, True)])
    caps.FILE.write_text("ranks_per_person = 2\n")
    monkeypatch.setattr(caps, "running", dict)
    assert caps.within(None, 4, shared_machine) == 2
    monkeypatch.setattr(caps, "running", lambda: {os.getpid(): 4})
    with pytest.raises(RuntimeError, match=r"a person may have 2 on this machine \(.*\). Way out: start_ranks\(2\)"):
        caps.within(4, 4, shared_machine)


def test_a_person_s_notebooks_count_together_and_ranks_that_were_stopped_do_not(fork_server, tmp_path_factory):
    body = """
    import subprocess, sys
    ranks = start_ranks(2)
    second = "from tpcourse import start_ranks; start_ranks({}).stop(); print('started')"
    def other(n):
        done = subprocess.run([sys.executable, "-c", second.format(n)], capture_output=True, text=True)
        print((done.stdout or done.stderr).strip().splitlines()[-1])
    other(1)
    other(2)
    other("")
    ranks.stop()
    other(2)
    """
    apart = str(tmp_path_factory.mktemp("apart"))  # other tests of this person run ranks at this moment
    process = script(body, TPCOURSE_RANKS_PER_PERSON="3", TMPDIR=apart)
    lines = process.communicate(timeout=90)[0].splitlines()
    assert process.returncode == 0
    assert [line.startswith("started") for line in lines] == [True, False, False, True]
    assert "2 more ranks are too many: a person may have 3" in lines[1]
    assert f"{process.pid} has 2" in lines[1] and "ranks.stop()" in lines[1]


def test_doctor_tells_the_cap_and_the_gpus_that_cannot_be_used(shared_machine, monkeypatch):
    monkeypatch.setattr("tpcourse.cli.doctor.sharing.all_gpus", lambda: [FREE, FULL])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    caps.FILE.write_text("ranks_per_person = 64\n")
    found = list(sharing())
    assert [finding.level for finding in found] == ["ok", "warn", "ok"]
    assert "1 of 2 (CUDA_VISIBLE_DEVICES='1')" in found[0].text
    assert "GPU 1 is full" in found[1].text
    assert f"64 a person ({caps.FILE})" in found[2].text


def test_devices_by_another_list_than_that_of_the_running_ranks_are_refused(shared_ranks):
    check_devices([0, 1])
    with pytest.raises(ValueError, match=r"already has 4 ranks .* on devices \[0, 1\]"):
        start_ranks(devices=[0, 1])
