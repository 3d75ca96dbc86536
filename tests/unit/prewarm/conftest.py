from collections.abc import Iterator

import pytest
from http_for_tests import served
from hub_for_tests import Hub
from llmd_pods.prewarm import web


def pause_s(attempt: int) -> float:
    return 0.0


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hugging Face hub of this machine with one repository, and a bucket, which the programs of this process ask."""
    with served(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("MODEL_SOURCE_URL", f"{hub.url}/p/secret/n/ns/b/bucket/o")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(web, "pause_s", pause_s)
        yield hub
