"""Every rule of style is broken once and named; a lesson that keeps them is clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_course import SOLUTION
from tpcourse.authoring import AuthoringError, lint, lint_code
from tpcourse.authoring.source import read_source

ROOT = Path(__file__).parents[1]
LESSON = """# %% [markdown]
# # 05 A lesson
# After this you can guess.

# %%
my_guess = ...

# %%
# %%px
import math

math.sqrt(rank)

# %%
draw.messages(log)

# %% [markdown]
# You saw a root.
"""


def read(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "05_x.py"
    path.write_text(text)
    return read_source(path)


def test_a_lesson_and_a_solution_in_good_style_have_no_problems(tmp_path: Path) -> None:
    assert lint(read(tmp_path, LESSON)) == []
    assert lint(read(tmp_path, SOLUTION)) == []


@pytest.mark.parametrize(
    ("text", "old", "new", "sentence"),
    [
        (LESSON, "After this you can", "You will", 'does not open with "After this you can ..."'),
        (LESSON, "You saw", "There was", 'does not close with "You saw ..."'),
        (LESSON, "my_guess = ...", "guess = ...", "cell 3 (code, `import math`) has no prose before it"),
        (LESSON, "draw.messages(log)", "log = 1", "cell 4 (code, `log = 1`) has no prose before it"),
        (LESSON, "my_guess = ...", "my_guess = (\n" + "    1,\n" * 19 + ")", "has 21 lines of code; at most 20"),
        (LESSON, "draw.messages(log)", "\n# %%\n".join(["x\n" * 9] * 3), "the median code cell has 9 lines"),
        (LESSON, "my_guess = ...", "# !pip install x", "installs or downloads"),
        (LESSON, "import math", "import matplotlib.pyplot as plt", "plots"),
        (SOLUTION, "## Add", "Add", "has no heading"),
        (SOLUTION, "Difficulty 1 of 3", "Easy", "exercise add has no difficulty"),
        (SOLUTION, "5 minutes", "short", "exercise add has no time in minutes"),
        (
            SOLUTION,
            "<details><summary>Hint 2</summary>a + b</details>",
            "",
            "no two or three hints in <details>, not 1",
        ),
        (SOLUTION, "plus</details>", "plus", "no closing tag for each <details>"),
        (SOLUTION, '"grade": true, "points": 2', '"locked": true', "exercise add has no check cell"),
    ],
)
def test_each_rule_of_style_is_named(tmp_path: Path, text: str, old: str, new: str, sentence: str) -> None:
    assert old in text
    problems = lint(read(tmp_path, text.replace(old, new)))
    assert any(sentence in problem for problem in problems), problems


def test_ruff_reads_the_bodies_of_px_cells_and_names_cell_and_line(tmp_path: Path) -> None:
    notebook = read(tmp_path, LESSON.replace("math.sqrt(rank)", "math.sqrt(rnak)"))
    problems = lint_code(notebook, "notebooks/05_x.ipynb", ROOT)
    assert problems == ["cell 3 (code, `import math`), line 4: Undefined name `rnak` (F821)"]


def test_ruff_knows_the_names_of_a_rank_and_what_was_pushed(tmp_path: Path) -> None:
    body = "rank, world_size, device, world, torch, dist"
    pushed = "# %% [markdown]\n# Push.\n\n# %%\nranks.push({\"lr\": 1, 'steps': 2})\n\n# %% [markdown]\n# Use.\n\n"
    text = LESSON.replace("math.sqrt(rank)", f"math.pi, {body}") + pushed + "# %%\n# %%px\nlr, steps\n"
    assert lint_code(read(tmp_path, text), "notebooks/05_x.ipynb", ROOT) == []


def test_a_ruff_that_does_not_answer_is_no_clean_bill(tmp_path: Path) -> None:
    (tmp_path / "ruff.toml").write_text("nonsense = true\n")
    with pytest.raises(AuthoringError, match="ruff did not check"):
        lint_code(read(tmp_path, LESSON), "05_x.ipynb", tmp_path)
