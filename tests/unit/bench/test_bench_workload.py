import itertools
from random import Random
from statistics import fmean, stdev

import pytest
from llmd_bench.load.workload import (
    CHARACTERS_PER_TOKEN,
    WORDS,
    Conversations,
    Fixed,
    LogNormal,
    Normal,
    PoissonRate,
    Position,
    PromptSource,
    RequestWorkload,
    SharedPrefix,
    arrivals_s,
    draw,
)


def test_a_prompt_has_a_three_letter_word_for_each_token_drawn_by_run_and_seed():
    assert (len(set(WORDS)), {len(word) for word in WORDS}) == (128, {3})
    prompt = PromptSource(4096, 7, "run").prompt(0)
    assert len(prompt) == CHARACTERS_PER_TOKEN * 4096
    assert len(prompt.split()) == 4096
    assert PromptSource(4096, 7, "run").prompt(0) == prompt


def test_no_two_benchmark_prompts_begin_with_the_same_kv_cache_block():
    block = 16 * CHARACTERS_PER_TOKEN
    sources = [PromptSource(32, seed, run) for seed in (0, 1) for run in ("a", "b")]
    prompts = [source.prompt(index)[:block] for source in sources for index in range(50)]
    assert len(set(prompts)) == len(prompts)


def test_a_poisson_rate_is_met_on_average_and_reproducible_by_its_seed():
    first, again = (list(itertools.islice(arrivals_s(PoissonRate(50, seed=3)), 5001)) for _ in range(2))
    assert first == again == sorted(first)
    assert 5000 / first[-1] == pytest.approx(50, rel=0.05)


def dice() -> Random:
    return Random(1)  # noqa: S311 - lengths, not secrets


@pytest.mark.parametrize("length", [Normal(1000, 100), LogNormal(1000, 400)])
def test_drawn_lengths_have_the_requested_mean_and_standard_deviation(length):
    random = dice()
    drawn = [draw(length, random) for _ in range(20000)]
    assert fmean(drawn) == pytest.approx(length.mean, rel=0.02)
    assert stdev(drawn) == pytest.approx(length.stddev, rel=0.05)


def test_lengths_stay_within_their_limits_and_a_fixed_one_is_exact():
    random = dice()
    drawn = {draw(Normal(10, 100, least=5, most=20), random) for _ in range(200)}
    assert (min(drawn), max(drawn)) == (5, 20)
    assert draw(Fixed(7), random) == 7


def test_prompt_lengths_depend_only_on_the_seed_but_prompt_texts_on_the_run():
    one, other = (RequestWorkload(Normal(64, 20), Fixed(8), seed=3, run=run) for run in ("a", "b"))
    questions = [(one.question(index), other.question(index)) for index in range(20)]
    assert [a.input_tokens for a, _ in questions] == [b.input_tokens for _, b in questions]
    assert not {a.text for a, _ in questions} & {b.text for _, b in questions}


def test_each_prompt_begins_with_one_of_the_shared_prefixes():
    workload = RequestWorkload(Fixed(8), Fixed(1), prefix=SharedPrefix(groups=3, tokens=32))
    questions = [workload.question(index) for index in range(60)]
    assert len({question.text[: 4 * 32] for question in questions}) == 3
    assert len({question.text[4 * 32 :] for question in questions}) == 60
    assert {question.input_tokens for question in questions} == {40}


def test_requests_alternate_between_the_conversations_held_at_a_time():
    workload = RequestWorkload(Fixed(8), Fixed(1), conversations=Conversations(at_a_time=2, turns=2))
    assert [workload.place(index) for index in range(6)] == [
        Position(0, 0, None, is_last=False),
        Position(1, 0, None, is_last=False),
        Position(0, 1, 0, is_last=True),
        Position(1, 1, 1, is_last=True),
        Position(2, 0, None, is_last=False),
        Position(3, 0, None, is_last=False),
    ]


def test_only_the_first_turn_of_a_conversation_begins_with_the_shared_prefix():
    prefix, conversations = SharedPrefix(1, 32), Conversations(at_a_time=1, turns=2)
    workload = RequestWorkload(Fixed(8), Fixed(1), prefix=prefix, conversations=conversations)
    assert [workload.question(index).input_tokens for index in (0, 1)] == [40, 8]
