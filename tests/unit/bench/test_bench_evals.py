"""The kit's own questions."""

import re

import pytest
from fake_deployment import Answer
from hypothesis import given
from hypothesis import strategies as st
from llmd_base.errors import KitError
from llmd_bench.evals import (
    EvalResult,
    Item,
    builtin_items,
    fingerprint,
    interval,
    judge,
    pair,
    read_result,
    right,
    write_result,
)
from llmd_bench.load.generator import CompletionsTarget
from llmd_bench.queries import ask_all
from llmd_oke.catalogue.benchmarks import builtin_set


def test_the_kits_questions_are_reproducible_unique_and_answered_by_their_prompts():
    items = builtin_items(builtin_set())
    assert builtin_items(builtin_set()) == items
    assert len({item.prompt for item in items}) == len(items) == 80
    for item in items:
        assert all(item.prompt.count(f": bin {number}\n") >= 1 for number in item.answer.split())
        assert len(item.answer.split()) == builtin_set().names


def test_a_changed_question_changes_the_fingerprint_of_the_question_set():
    items = builtin_items(builtin_set())
    changed = (*items[:-1], Item("other", "In which bins are a, b?", "1 2"))
    assert fingerprint(items) != fingerprint(changed)


def test_the_last_numbers_of_an_answer_are_graded_in_their_order():
    item = Item("a", "In which bins are a, b?", "11000 23456")
    assert right(item, "1 and 2: they are in bins 11,000 and 23,456.")
    assert right(item, "11000,23456")
    assert not right(item, "23456 11000")
    assert not right(item, "11000 23456, or rather 1101")
    assert not right(item, "23456")
    assert not right(item, "I can't say")


ITEMS = tuple(Item(f"sum-{n}", f"What is {n} + 1?", str(n + 1)) for n in range(6))


@pytest.fixture(name="ask")
def ask_fixture(deployment):
    """Give a function that asks all of `ITEMS`; `behave` says what becomes of each prompt."""

    async def ask(behave, limit_s=5.0):
        def script(number):
            status, _ = behave(deployment.requests[number]["messages"][0]["content"])
            return Answer(status=status)

        deployment.script = script
        deployment.reply = lambda prompt: behave(prompt)[1]
        target, done = CompletionsTarget(deployment.url, "m", api="chat"), []
        answered = await ask_all(
            target, ITEMS, concurrency=3, max_output_tokens=16, limit_s=limit_s, on_answer=done.append
        )
        return answered, done

    return ask


def number(prompt):
    return int(prompt.split()[2])


async def test_graded_answers_have_the_order_of_the_questions_and_the_texts_of_wrong_ones(ask):
    answered, done = await ask(lambda prompt: (200, "7 bananas" if number(prompt) == 0 else str(number(prompt) + 1)))
    assert [(each.id, each.right) for each in answered] == [(item.id, item is not ITEMS[0]) for item in ITEMS]
    assert answered[0].text == "7 bananas"
    assert done == [1, 2, 3, 4, 5, 6]


async def test_an_unanswered_evaluation_question_counts_as_wrong_with_the_reason(ask):
    answered, _ = await ask(lambda prompt: (503, "") if number(prompt) == 2 else (200, str(number(prompt) + 1)))
    assert not answered[2].right
    assert answered[2].error.startswith("HTTP 503")


async def test_an_evaluation_question_is_asked_again_after_a_temporary_failure(ask):
    seen = set()

    def once(prompt):
        first = prompt not in seen
        seen.add(prompt)
        return (500, "") if first else (200, str(number(prompt) + 1))

    answered, _ = await ask(once)
    assert all(item.right for item in answered)


async def test_an_evaluation_whose_questions_were_not_asked_or_answered_is_an_error(ask):
    with pytest.raises(KitError, match="6 of 6 questions were not asked: the limit of 0 s was over"):
        await ask(lambda _: (200, "1"), limit_s=0.0)
    with pytest.raises(KitError, match="None of 6 questions was answered; the last: HTTP 503"):
        await ask(lambda _: (503, ""))


def test_an_evaluation_is_worse_only_if_it_lost_significantly_more_than_it_won():
    """Six lost, none won: 1 in 64."""
    paired = pair([False] * 6 + [True] * 94, [True] * 100)
    assert (paired.lost, paired.won, paired.worse) == (6, 0, True)
    assert (paired.p_value, paired.difference) == (pytest.approx(1 / 64), pytest.approx(-0.06))
    assert not pair([False] + [True] * 99, [True] * 100).worse
    assert not pair([True, False, True, True], [False, True, True, True]).worse


def test_evaluations_with_different_numbers_of_questions_are_not_compared():
    with pytest.raises(ValueError, match="argument 2"):
        pair([True, True], [True])


def test_the_wilson_interval_reproduces_a_published_example():
    """Wilson score interval of 81 in 263: 0.2553 to 0.3662 (Newcombe, Statistics in Medicine 17, 1998, table I)."""
    low, high = interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_the_p_value_of_two_compared_evaluations_is_between_zero_and_one(answers):
    these, those = zip(*answers, strict=True)
    assert 0 <= pair(these, those).p_value <= 1


def result(answers="1" * 80, **changes):
    values = {
        "evaluation": "builtin",
        "question_set": "abc",
        "model": "gpt-oss-120b",
        "image": "vllm:1",
        "topology": "8p-tp1-4d-tp2",
        "config_hash": "0123",
        "basis": "measured",
        "started": "2026-03-01T00:00:00+00:00",
        "wall_s": 1.0,
        "answers": answers,
    }
    return EvalResult(**{**values, **changes})


@pytest.mark.parametrize(
    ("answers", "floor", "told"),
    [("1" * 94 + "0" * 6, 0.95, r"94\.0%.*95\.0%"), ("1" * 80, None, "--floor"), ("", 0.0, "")],
    ids=["below its floor", "no floor", "no answers"],
)
def test_an_accuracy_below_its_floor_or_without_a_floor_or_answers_fails(answers, floor, told):
    assert judge(result("1" * 95 + "0" * 5), 0.95, None).passed
    judged = judge(result(answers), floor, None)
    assert (judged.passed, len(judged.failures)) == (False, 1)
    assert re.search(told, judged.failures[0])


def test_a_significant_loss_against_the_baseline_fails_even_above_the_floor():
    worse = result("1" * 70 + "0" * 10)
    judged = judge(worse, 0.5, result("1" * 80, topology="agg-tp1-16r"))
    assert not judged.passed
    assert judged.baseline_score == 1.0


@pytest.mark.parametrize("what", ["question_set", "image", "model", "evaluation"])
def test_a_baseline_of_another_model_or_evaluation_is_refused(what):
    with pytest.raises(KitError, match="other"):
        judge(result(), 0.5, result(**{what: "other"}))


def test_an_evaluation_result_is_read_as_written_and_any_other_file_is_refused(tmp_path):
    written = result("1101", examples=("recall-1: 'seven'",), unanswered=1)
    file = write_result(written, tmp_path)
    assert read_result(file) == written
    file.write_text("{}")
    with pytest.raises(KitError, match=r"eval-builtin\.json"):
        read_result(file)
