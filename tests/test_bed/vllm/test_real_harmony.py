"""gpt-oss of vLLM itself on a processor, where OpenAI's vocabulary of the Harmony format can't be read: it answers as
the simulated one does.
"""

from collections.abc import Iterator

import httpx2
import pytest
from hand_over_servers import WINDOWED
from llmd_rehearsal.real_vllm.tiny_models import tiny_model
from llmd_rehearsal.vllm.startup import ContainerFiles, catalogue_model, vocabulary_error
from real_servers import MODEL, READY_S, server, wait_for
from real_vllm_for_tests import need_real_vllm

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly]

NOWHERE = "http://127.0.0.1:9"
"""Proxy that nobody listens at, so that nothing is downloaded, as in a pod without a way out."""


@pytest.fixture(scope="module", params=["0.26.0", "0.30.0"], ids=lambda version: f"real-{version}")
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    version: str = request.param
    vllm, folder = need_real_vllm(version), tmp_path_factory.mktemp(version)
    empty = folder / "vocabularies"
    empty.mkdir()
    more = {"TIKTOKEN_ENCODINGS_BASE": str(empty), "HTTPS_PROXY": NOWHERE, "https_proxy": NOWHERE}
    model = tiny_model(catalogue_model(WINDOWED), version)
    with server(vllm, folder / "server", model=model, more=more) as (address, running):
        wait_for(f"{address}/health", folder / "server" / "log", running, READY_S)
        yield address


def asked(url: str, path: str, prompt: dict[str, object]) -> httpx2.Response:
    """Return the answer to a request, on a connection of its own, as vLLM closes one after an error."""
    return httpx2.post(f"{url}/v1/{path}", json={"model": MODEL, **prompt}, timeout=60)


def test_gpt_oss_without_its_vocabulary_answers_completions(url: str) -> None:
    answer = asked(url, "completions", {"prompt": [10, 11, 12], "max_tokens": 2})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("chat/completions", {"messages": [{"role": "user", "content": "hello"}]}), ("responses", {"input": "hello"})],
    ids=["chat", "response"],
)
def test_gpt_oss_without_its_vocabulary_refuses_chats_as_the_simulated_one_does(
    url: str, path: str, prompt: dict[str, object]
) -> None:
    answer = asked(url, path, prompt)
    error = answer.json()["error"]
    said = vocabulary_error(catalogue_model(WINDOWED), {"TIKTOKEN_ENCODINGS_BASE": "/empty"}, ContainerFiles({}))
    assert (answer.status_code, error["type"], error["message"]) == (500, "InternalServerError", said)
