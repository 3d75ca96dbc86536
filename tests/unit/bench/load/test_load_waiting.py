import asyncio

import pytest
from fake_deployment import Answer
from llmd_oke.bench.load import waiting
from llmd_oke.bench.load.waiting import wait_for_answer
from llmd_oke.errors import KitError


async def test_a_completion_of_one_token_ends_the_wait(deployment):
    await wait_for_answer(deployment.target, limit_s=20)
    assert [body["max_tokens"] for body in deployment.requests] == [1]


async def test_it_asks_until_there_is_an_answer(deployment):
    deployment.script = lambda number: Answer(status=503 if number < 3 else 200)
    await wait_for_answer(deployment.target, limit_s=20, pause_s=0)
    assert len(deployment.requests) == 4


async def test_the_limit_ends_it_with_the_last_answer(deployment):
    deployment.script = lambda _: Answer(status=503)
    with pytest.raises(KitError, match=r"no completion within 0.5 s; the last attempt: status: HTTP 503"):
        await wait_for_answer(deployment.target, limit_s=0.5, pause_s=0.1)


async def test_a_refusal_is_not_waited_for(deployment):
    deployment.script = lambda _: Answer(status=401)
    with pytest.raises(KitError, match="refuses a completion: HTTP 401"):
        await wait_for_answer(deployment.target, limit_s=20)
    assert len(deployment.requests) == 1


async def test_no_time_means_no_answer(deployment):
    with pytest.raises(KitError, match="none was tried"):
        await wait_for_answer(deployment.target, limit_s=0)


@pytest.mark.parametrize(("time_scale", "attempts"), [(1.0, 2), (600.0, 1)])
async def test_an_attempt_has_its_time_in_the_time_of_the_servers(deployment, monkeypatch, time_scale, attempts):
    monkeypatch.setattr(waiting, "ATTEMPT_TIMEOUT_S", 0.1)
    asyncio.get_running_loop().call_later(0.4, deployment.released.set)
    deployment.script = lambda number: Answer(hang=number == 0)
    await wait_for_answer(deployment.target, limit_s=20, time_scale=time_scale, pause_s=0)
    assert len(deployment.requests) == attempts
