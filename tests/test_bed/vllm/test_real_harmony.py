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
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    version: str = request.param
    vllm, folder = need_real_vllm(version), tmp_path_factory.mktemp(version)
    empty = folder / "vocabularies"
    empty.mkdir()
    more = {"TIKTOKEN_ENCODINGS_BASE": str(empty), "HTTPS_PROXY": NOWHERE, "https_proxy": NOWHERE}
    model = tiny_model(catalogue_model(WINDOWED), version)
    with server(vllm, folder / "server", model=model, more=more) as (url, running):
        wait_for(f"{url}/health", folder / "server" / "log", running, READY_S)
        with httpx2.Client(base_url=url, timeout=60) as asked:
            yield asked


def test_gpt_oss_without_its_vocabulary_answers_completions(client: httpx2.Client) -> None:
    answer = client.post("/v1/completions", json={"model": MODEL, "prompt": [10, 11, 12], "max_tokens": 2})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("chat/completions", {"messages": [{"role": "user", "content": "hello"}]}), ("responses", {"input": "hello"})],
    ids=["chat", "response"],
)
def test_gpt_oss_without_its_vocabulary_refuses_chats_as_the_simulated_one_does(
    client: httpx2.Client, path: str, prompt: dict[str, object]
) -> None:
    answer = client.post(f"/v1/{path}", json={"model": MODEL, **prompt})
    error = answer.json()["error"]
    said = vocabulary_error(catalogue_model(WINDOWED), {"TIKTOKEN_ENCODINGS_BASE": "/empty"}, ContainerFiles({}))
    assert (answer.status_code, error["type"], error["message"]) == (500, "InternalServerError", said)
