"""Sampled text: from the right distribution, and the same on every rank and for any number of ranks."""

from __future__ import annotations

import re
from collections import Counter
from unittest import mock

import pytest
import torch
from ledger_help import logged
from rig import run_ranks
from torch import nn

from tpcourse.block import GPT, GPTConfig
from tpcourse.dims import split_range
from tpcourse.train import sample, sampling

CONFIG = GPTConfig(V=256, T=12, D=24, H=12, L=1, tied=False, dropout=0.5)


def gpt(tp=None, **more):
    """A GPT whose logits are large enough for the text not to be noise alone."""
    model = GPT(CONFIG, tp=tp, dtype=torch.float64, seed=3, **more)
    with torch.no_grad():
        model.head.weight *= 30
    return model


class Fixed(nn.Module):
    """A model that says the same logits after every token, or those that a function of the tokens gives."""

    def __init__(self, logits=None, T=4, after=None):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.V = 256 if logits is None else len(logits)
        self.config, self.after, self.seen = mock.Mock(V=self.V, T=T), after or (lambda _: logits), []

    def forward(self, tokens):
        self.seen.append(tokens[0].tolist())
        return torch.stack([self.after(tokens[0, : place + 1].tolist()) for place in range(tokens.shape[1])])[None]


def certain(byte, V=256):
    return torch.zeros(V).index_fill(0, torch.tensor([byte]), 1e9)


def says(text):
    """A model that says these bytes, one after the other, whatever came before the prompt's one byte."""
    return Fixed(T=len(text) + 1, after=lambda tokens: certain(text[min(len(tokens), len(text)) - 1]))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_bytes_come_with_the_probabilities_of_a_softmax(temperature):
    logits = torch.full((256,), -1e9)
    logits[[97, 98, 99, 100]] = torch.tensor([0.0, 1.0, 2.0, -1.0])
    counts = Counter(sample(Fixed(logits, T=1), "?", 3000, temperature=temperature)[1:])
    expected = torch.softmax(logits[97:101] / temperature, 0)
    assert sum(counts.values()) == 3000
    for letter, share in zip("abcd", expected.tolist(), strict=True):
        deviation = (share * (1 - share) / 3000) ** 0.5
        assert counts[letter] / 3000 == pytest.approx(share, abs=4 * deviation)


def test_temperature_0_takes_the_likeliest_byte_whatever_the_seed():
    model = gpt()
    texts = {sample(model, "import ", 20, temperature=0, seed=seed) for seed in range(3)}
    assert len(texts) == 1
    logits = torch.zeros(256)
    logits[[97, 98, 99, 100]] = torch.tensor([1.0, 2.5, 3.0, 2.9])
    assert sample(Fixed(logits), "?", 5, temperature=0) == "?ccccc"


def test_another_seed_is_another_text_and_the_same_seed_the_same():
    model = gpt()
    texts = [sample(model, "import ", 20, seed=seed) for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]


def test_dropout_is_off_while_text_is_sampled_and_on_afterwards():
    model = gpt()
    assert sample(model, "def", 20) == sample(model, "def", 20) and model.training
    model.eval()
    sample(model, "def", 1)
    assert not model.training


def _texts(rank, group):
    texts = [sample(gpt(group, **more), "def f", 16, seed=5, tp=group) for more in ({}, {"sequence_parallel": True})]
    return [*texts, sample(gpt(group), "def f", 4, temperature=0, tp=group)]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_all_ranks_write_the_text_of_one_device(p):
    """256 bytes do not divide by 3, nor do the first texts reach the 12 tokens that are cut over the ranks."""
    text = sample(gpt(), "def f", 16, seed=5)
    assert run_ranks(_texts, p) == [[text, text, sample(gpt(), "def f", 4, temperature=0)]] * p


def _local_noise(rank, group):
    """Wrong: each rank's noise begins at the front, so a byte's noise depends on who holds it."""
    draw = torch.Tensor.exponential_
    with mock.patch.object(
        torch.Tensor,
        "exponential_",
        lambda noise, generator: draw(noise, generator=generator).roll(split_range(256, 2, rank)[0]),
    ):
        return sample(gpt(group), "def f", 30, seed=5, tp=group)


def test_noise_that_depends_on_the_rank_writes_another_text():
    assert run_ranks(_local_noise, 2)[0] != sample(gpt(), "def f", 30, seed=5)


def _calls(rank, group):
    model, tokens = gpt(group).eval(), torch.zeros(1, 12, dtype=torch.long)
    forward = logged(model, tokens).num_calls
    log = logged(lambda: sample(model, "def f", 7, tp=group))
    return forward, log.num_calls, [event.bytes_sent for event in log.events if event.op == "all_gather"]


def test_each_byte_costs_the_model_s_calls_and_one_gather_of_two_numbers():
    for forward, num_calls, gathered in run_ranks(_calls, 2):
        assert num_calls == 7 * (forward + 1) and gathered == [16] * 7


def test_the_model_reads_the_last_tokens_of_a_long_text():
    model = Fixed(certain(ord("x")), T=4)
    assert sample(model, "abcdef", 3) == "abcdefxxx"
    assert [bytes(seen) for seen in model.seen] == [b"cdef", b"defx", b"efxx"]
    assert sample(model, "abcdef", 1, length=2) and bytes(model.seen[-1]) == b"ef"


def test_a_short_text_is_filled_up_behind_its_end():
    model = Fixed(certain(ord("x")), T=4)
    assert sample(model, "ab", 1) == "abx" and model.seen == [[97, 98, 0, 0]]


def test_a_character_of_several_bytes_is_put_together():
    assert sample(says("é→".encode()), "a", 5) == "aé→"
    assert sample(says("é→".encode()), "a", 4) == "aé\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("byte", [0, 7, 13, 27, 127, 128, 0xC3, 255])
def test_bytes_that_are_no_text_are_shown_as_the_replacement_character(byte):
    assert sample(Fixed(certain(byte)), "a", 2) == "a" + 2 * "\N{REPLACEMENT CHARACTER}"


def test_any_bytes_are_a_text():
    everything = bytes(range(256)) * 2 + bytes(reversed(range(256)))
    text = sampling.readable(everything)
    assert all(c in "\n\t" or c.isprintable() for c in text) and text.isprintable() is False
    assert sample(Fixed(certain(97)), "\ud800", 1) == "?a"


def test_a_vocabulary_longer_than_all_bytes_gives_bytes_only():
    logits = certain(299, V=300)
    logits[97] = 1e6
    assert sample(Fixed(logits), "b", 2) == "baa"


def _of_600(rank, group):
    """Rank 1 holds 300 to 599, and no byte."""
    logits = torch.linspace(-600, 0, 600, dtype=torch.float64)
    model = Fixed(logits[300 * rank :][:300])
    model.config.V = 600
    return [sample(model, "?", 12, seed=8, temperature=temperature, tp=group) for temperature in (0, 50.0)]


def test_a_rank_that_holds_no_byte_at_all_loses_against_the_others():
    model = Fixed(torch.linspace(-600, 0, 600, dtype=torch.float64))
    texts = [sample(model, "?", 12, seed=8, temperature=temperature) for temperature in (0, 50.0)]
    assert run_ranks(_of_600, 2) == [texts] * 2 and texts[0] != texts[1]


def _without_tp(rank, group):
    sample(gpt(group), "a", 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sample(gpt(), "", 1), "the prompt is empty, 0 bytes"),
        (lambda: sample(gpt(), "a", -1), "num_tokens = -1: give 0 or more"),
        (lambda: sample(gpt(), "a", 1, temperature=-1.0), "temperature = -1.0: give 0 for the likeliest byte"),
        (lambda: sample(gpt(), "a", 1, length=0), "length = 0: how many tokens the model reads, 1 or more"),
        (lambda: sample(nn.Linear(1, 1), "a", 1), "no config.T: say how many tokens it reads, for example length=64"),
        (
            lambda: run_ranks(_without_tp, 2),
            "128 logits on rank 0 of 1, not 256 of a vocabulary of 256: pass",
        ),
    ],
)
def test_bad_input_is_answered_with_the_numbers_and_the_fix(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_no_tokens_leave_the_prompt_as_it_is():
    assert sample(gpt(), "import os\n", 0) == "import os\n"
