from llmd_oke.bench.workload.prompts import CHARACTERS_PER_TOKEN, WORDS, PromptSource


def test_words_are_distinct_and_have_three_letters():
    assert len(set(WORDS)) == 128
    assert {len(word) for word in WORDS} == {3}


def test_a_prompt_has_four_characters_for_each_token():
    prompt = PromptSource(4096, 0, "run").prompt(0)
    assert len(prompt) == CHARACTERS_PER_TOKEN * 4096
    assert len(prompt.split()) == 4096


def test_the_same_run_and_seed_give_the_same_prompts():
    assert PromptSource(32, 7, "a").prompt(3) == PromptSource(32, 7, "a").prompt(3)


def test_no_two_prompts_begin_alike():
    block = 16 * CHARACTERS_PER_TOKEN
    sources = [PromptSource(32, seed, run) for seed in (0, 1) for run in ("a", "b")]
    prompts = [source.prompt(index)[:block] for source in sources for index in range(50)]
    assert len(set(prompts)) == len(prompts)
