"""Asking a server that answers by rule, over loopback."""

import asyncio
import json

import pytest
from llmd_oke.bench.evals.asking import ask_all
from llmd_oke.bench.evals.items import Item
from llmd_oke.bench.load.load import Target
from llmd_oke.errors import KitError

ITEMS = tuple(Item(f"sum-{n}", "arithmetic", f"What is {n} + 1?", str(n + 1)) for n in range(6))


@pytest.fixture(name="ask")
async def ask_fixture():
    """Gives a function that asks all of `ITEMS`; `behave` says what becomes of each prompt."""
    servers = []

    async def ask(behave, limit_s=5.0):
        async def serve(reader, writer):
            while (head := await reader.readuntil(b"\r\n\r\n")) if not reader.at_eof() else b"":
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                prompt = json.loads(await reader.readexactly(length))["messages"][0]["content"]
                status, said = behave(prompt)
                body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
                await writer.drain()

        async def quietly(reader, writer):
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(quietly, "127.0.0.1", 0)
        servers.append(server)
        port = server.sockets[0].getsockname()[1]
        target = Target(f"http://127.0.0.1:{port}", "m", api="chat")
        done = []
        answered = await ask_all(
            target, ITEMS, concurrency=3, max_output_tokens=16, limit_s=limit_s, on_answer=done.append
        )
        return answered, done

    yield ask
    for server in servers:
        server.close()


def number(prompt):
    return int(prompt.split()[2])


async def test_answers_come_in_the_order_of_the_questions(ask):
    answered, done = await ask(lambda prompt: (200, str(number(prompt) + 1)))
    assert [each.id for each in answered] == [item.id for item in ITEMS]
    assert all(each.right for each in answered)
    assert done == [1, 2, 3, 4, 5, 6]


async def test_a_wrong_answer_is_kept_to_be_shown(ask):
    answered, _ = await ask(lambda prompt: (200, "7 bananas" if number(prompt) == 0 else str(number(prompt) + 1)))
    assert [each.right for each in answered] == [False, True, True, True, True, True]
    assert answered[0].said == "7 bananas"


async def test_a_question_without_an_answer_is_wrong_and_says_why(ask):
    answered, _ = await ask(lambda prompt: (503, "") if number(prompt) == 2 else (200, str(number(prompt) + 1)))
    assert not answered[2].right
    assert answered[2].error.startswith("HTTP 503")


async def test_a_passing_fault_is_asked_again(ask):
    seen = set()

    def once(prompt):
        first = prompt not in seen
        seen.add(prompt)
        return (500, "") if first else (200, str(number(prompt) + 1))

    answered, _ = await ask(once)
    assert all(each.right for each in answered)


async def test_questions_that_there_was_no_time_for_are_an_error(ask):
    with pytest.raises(KitError, match="6 of 6 questions were not asked: the limit of 0 s was over"):
        await ask(lambda _: (200, "1"), limit_s=0.0)


async def test_a_set_of_which_no_question_is_answered_is_an_error(ask):
    with pytest.raises(KitError, match="None of 6 questions was answered; the last: HTTP 503"):
        await ask(lambda _: (503, ""))
