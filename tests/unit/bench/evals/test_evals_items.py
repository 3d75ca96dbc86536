"""The kit's own questions."""

from llmd_oke.bench.evals.builtin import builtin_set
from llmd_oke.bench.evals.grading import right
from llmd_oke.bench.evals.items import Item, builtin_items, fingerprint


def test_the_set_is_the_same_each_time_and_no_question_comes_twice():
    items = builtin_items(builtin_set())
    assert builtin_items(builtin_set()) == items
    assert len({item.prompt for item in items}) == len(items) == 80


def test_every_question_of_recall_can_be_answered_from_its_register_only():
    for item in builtin_items(builtin_set()):
        if item.kind == "recall":
            assert item.prompt.count(f": bin {item.answer}\n") >= 1


def test_another_question_gives_the_set_another_name():
    items = builtin_items(builtin_set())
    changed = (*items[:-1], Item("other", "arithmetic", "What is 1 + 1? Answer with the number only.", "2"))
    assert fingerprint(items) != fingerprint(changed)


def test_a_number_counts_when_it_is_the_last_in_the_answer():
    item = Item("a", "arithmetic", "What is 500 + 600?", "1100")
    assert right(item, "500 + 600 = 1,100.")
    assert not right(item, "1100, or rather 1101")
    assert not right(item, "I can't say")


def test_words_count_when_all_of_them_end_the_answer_in_order():
    item = Item("r", "repetition", "Repeat these words …: one two six", "one two six")
    assert right(item, "Here you are: one two six")
    assert not right(item, "one six two")
    assert not right(item, "")
