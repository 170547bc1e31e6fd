"""The stepper and the source listing, as a front end receives them."""

import pytest

from tpcourse import draw
from tpcourse.draw.palette import png, styled
from tpcourse.draw.source import source_text
from tpcourse.draw.stepper import HINT, Stepper

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def shown(monkeypatch):
    """What display() was given, in order; updates come as ("update", object)."""
    outputs = []

    class Handle:
        def update(self, thing):
            outputs.append(("update", thing))

    def display(thing, **options):
        outputs.append(thing)
        return Handle() if options.get("display_id") else None

    monkeypatch.setattr("IPython.display.display", display)
    return outputs


def test_the_first_picture_is_an_ordinary_png_and_needs_no_widget_state(shown):
    assert draw.collective_stepper("all_reduce, ring", 4) is None
    controls, picture = shown
    assert controls["text/plain"] == HINT and WIDGET in controls
    data, _ = picture._repr_mimebundle_()
    assert data["text/plain"] == "Picture: exchange" and data["image/png"][:4] == b"\x89PNG" and WIDGET not in data


def test_the_first_picture_is_the_same_on_every_run(shown):
    draw.collective_stepper()
    draw.collective_stepper()
    assert png(shown[1]) == png(shown[3])


def test_moving_the_step_replaces_the_picture(shown):
    stepper = Stepper("all_gather, ring", 4)
    stepper.show()
    stepper.step.value = 1
    (word, second) = shown[-1]
    assert word == "update" and png(second) != png(shown[1])


def test_another_algorithm_starts_at_its_first_step_with_one_new_picture(shown):
    stepper = Stepper("all_gather, ring", 4)
    stepper.show()
    stepper.step.value = 3
    before = len(shown)
    stepper.algorithm.value = "all_reduce, ring"
    assert (stepper.step.value, stepper.step.max) == (0, 6)
    assert len(shown) == before + 1 and "all_reduce, ring, 4 ranks" in shown[-1][1].texts[0].get_text()


def test_the_slider_for_ranks_changes_the_number_of_ranks(shown):
    stepper = Stepper("all_gather, ring", 4)
    stepper.show()
    stepper.p.value = 8
    assert stepper.step.max == 7 and "8 ranks" in shown[-1][1].texts[0].get_text()


def test_an_algorithm_that_cannot_do_this_p_says_so_in_the_picture(shown):
    stepper = Stepper("all_reduce, halving and doubling", 4)
    stepper.show()
    stepper.p.value = 3
    assert stepper.step.max == 0 and "p = 3 is not a power of 2" in shown[-1][1].texts[0].get_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("ring",), "'ring'"), (("all_gather, ring", 9), "p = 9 ranks: choose 2 to 8"),
     (("all_reduce, halving and doubling", 6), "p = 6 is not a power of 2")],
)  # fmt: skip
def test_a_wrong_start_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        draw.collective_stepper(*arguments)


@styled
def decorated(x: int) -> int:
    """One sentence."""
    return x


def test_source_is_shown_without_decorators_under_its_files_name(shown):
    assert source_text(decorated) == (
        '# test_draw_stepper.py\ndef decorated(x: int) -> int:\n    """One sentence."""\n    return x\n'
    )
    draw.show_source(decorated)
    assert shown[0]["text/markdown"] == f"```python\n{shown[0]['text/plain']}```"


def test_source_of_the_package_is_named_by_its_path():
    assert source_text(source_text).startswith("# tpcourse/draw/source.py\ndef source_text(")


def test_a_function_without_source_is_refused():
    with pytest.raises(ValueError, match="no Python source for len"):
        source_text(len)
