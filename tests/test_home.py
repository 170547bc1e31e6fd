"""A home that cannot be written does not stop anything, and one that can is left alone."""

import os
import stat
import subprocess
import sys
from pathlib import Path

from tpcourse.home import FOLDERS, home_is_writable, settle_home


def test_a_home_that_can_be_written_is_left_alone(tmp_path):
    environ = {"HOME": str(tmp_path)}
    assert settle_home(environ) is None
    assert environ == {"HOME": str(tmp_path)}


def test_without_a_home_everything_goes_to_a_folder_that_only_this_user_can_enter():
    environ = {"HOME": "/nonexistent"}
    folder = settle_home(environ)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in FOLDERS:
        place = Path(environ[name])
        assert place.is_dir()
        assert folder in place.parents


def test_what_the_user_has_set_stays(tmp_path):
    environ = {"HOME": "/nonexistent", "MPLCONFIGDIR": str(tmp_path)}
    settle_home(environ)
    assert environ["MPLCONFIGDIR"] == str(tmp_path)


def test_a_file_in_place_of_the_home_counts_as_no_home(tmp_path):
    (tmp_path / "file").touch()
    assert not home_is_writable({"HOME": str(tmp_path / "file")})


def test_the_folder_ends_with_the_process():
    code = "from tpcourse.home import settle_home; print(settle_home())"
    environ = {name: value for name, value in os.environ.items() if name not in FOLDERS} | {"HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() != "None"
    assert not Path(done.stdout.strip()).exists()
