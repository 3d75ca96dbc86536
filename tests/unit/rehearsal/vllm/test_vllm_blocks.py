"""KV blocks and the prompts that fill them."""

from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.rehearsal.vllm.blocks import BlockPool
from llmd_oke.rehearsal.vllm.prompts import Prompt, chat_prompt, completion_prompts, responses_prompt


def test_no_more_blocks_are_given_than_there_are():
    """All or nothing."""
    pool = BlockPool(4)
    assert pool.allocate(3) is not None
    assert pool.allocate(2) is None
    assert pool.available == 1


def test_a_released_block_is_found_by_its_content_until_it_is_needed():
    """Eviction takes the least recently used, the tail of a prompt before its head."""
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, content in zip(blocks, (11, 12, 13), strict=True):
        pool.keep(block, content)
    pool.release(blocks)
    assert pool.cached([11, 12, 13]) == blocks
    pool.allocate(1)
    assert pool.cached([11, 12, 13]) == blocks[:2]


def test_a_shared_block_is_free_when_its_last_user_releases_it():
    """Reference counts."""
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    pool.keep(blocks[0], 11)
    pool.share(pool.cached([11]))
    pool.release(blocks)
    assert pool.available == 1
    pool.release(blocks[:1])
    assert pool.available == 2
    assert pool.usage == 0.0


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 9)), max_size=60))
def test_a_pool_never_loses_or_invents_a_block(actions):
    """Whatever is allocated, shared, kept and released, the users add up and all blocks come back."""
    pool, users = BlockPool(10), []
    for count, release, content in actions:
        if release and users:
            pool.release(users.pop(0))
        elif (blocks := pool.allocate(count)) is not None:
            pool.keep(blocks[0], content)
            users.append(blocks)
        shared = pool.cached([content])
        pool.share(shared)
        users.append(shared)
        held = {block for blocks in users for block in blocks}
        assert pool.available == 10 - len(held)
    for blocks in users:
        pool.release(blocks)
    assert pool.available == 10


def test_four_characters_are_a_token_and_ids_count_exactly():
    """As the endpoint picker estimates."""
    assert [Prompt("x" * length).tokens for length in (1, 4, 5)] == [1, 1, 2]
    assert Prompt((1, 2, 3)).tokens == 3


def test_equal_prefixes_have_equal_hashes_and_different_ones_have_not():
    """A block's hash covers all that was before it."""
    one, other = Prompt("a" * 64 + "b" * 64 + "c").block_hashes(16), Prompt("z" * 64 + "b" * 64).block_hashes(16)
    assert one == Prompt("a" * 64 + "b" * 64 + "rest").block_hashes(16)
    assert len(one) == 2
    assert one[1] != other[1]


def test_the_forms_of_a_prompt():
    """Text, ids, or a list of these; messages with text or parts; instructions and items of a response."""
    assert completion_prompts("text") == completion_prompts(["text"]) == [Prompt("text")]
    assert completion_prompts([1, 2]) == completion_prompts([[1, 2]]) == [Prompt((1, 2))]
    assert completion_prompts([[1], []]) == [Prompt((1,)), Prompt(())]
    assert completion_prompts([]) == completion_prompts(None) == []
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert chat_prompt(parts) == chat_prompt([{"role": "user", "content": "hi"}]) == responses_prompt(None, "hi")
    call = {"type": "function_call_output", "call_id": "c", "output": "4"}
    messages = [{"role": "system", "content": "be short"}, *parts, {"role": call["type"], "content": "4"}]
    assert responses_prompt("be short", [*parts, call]) == chat_prompt(messages)
