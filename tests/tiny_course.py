"""A course of one lesson with an exercise, for the tests of authoring."""

from pathlib import Path

LESSON = """# %% [markdown]
# # 01 Adding
# After this you can add.

# %%
# a picture, and two streams
from IPython.display import display
print("one")
2 + 2

# %% [markdown]
# A picture and an error that is meant.

# %%
import base64, struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
note = chunk(b"tEXt", b"Software\\0Matplotlib version 3")
png = b"\\x89PNG\\r\\n\\x1a\\n" + header + note + chunk(b"IDAT", zlib.compress(b"\\0\\0")) + chunk(b"IEND", b"")
picture = base64.b64encode(png).decode()
view = {"model_id": "random", "version_major": 2, "version_minor": 0}
kinds = {"image/png": picture, "text/plain": "a slider", "application/vnd.jupyter.widget-view+json": view}
display(kinds, raw=True)

# %% [markdown]
# An error.

# %% tags=["raises-exception"]
import json
json.loads("{")

# %% [markdown]
# A time.

# %% tags=["machine-dependent"]
import time
time.time_ns()

# %% [markdown]
# You saw a sum.
"""

SOLUTION = '''# %% [markdown]
# # 01 Adding: exercises

# %% [markdown]
# ## Add
# Difficulty 1 of 3, 5 minutes, uses `+`. Return the sum of two numbers.
#
# <details><summary>Hint 1</summary>plus</details>
# <details><summary>Hint 2</summary>a + b</details>

# %% nbgrader={"grade_id": "add", "solution": true}
def add(a, b):
    """The sum."""
    ### BEGIN SOLUTION
    total = a + b  # the secret
    return total
    ### END SOLUTION

# %% nbgrader={"grade_id": "add_check", "grade": true, "points": 2} tags=["check"]
assert add(1, 2) == 3
### BEGIN HIDDEN TESTS
assert add(10**6, 1) == 10**6 + 1
### END HIDDEN TESTS
print("add: passed")
'''


def write(root: Path, text: str, folder: str = "notebooks", name: str = "01_adding") -> None:
    (root / folder / "src").mkdir(parents=True, exist_ok=True)
    (root / folder / "src" / f"{name}.py").write_text(text)
