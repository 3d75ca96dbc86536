"""What `llmd-oke bench` loads."""

import json
from pathlib import Path

import pytest
from llmd_oke.bench.deployment.directory import Way
from llmd_oke.cli import bench_target
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed import cluster_access

PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize("value", ["planted x", "planted\nx", "planted\x01", "pläntedplanted"])
def test_a_token_that_no_request_can_carry_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv(bench_target.TOKEN_VARIABLE, value)
    with pytest.raises(KitError, match=bench_target.TOKEN_VARIABLE) as caught:
        bench_target.of_url("http://127.0.0.1:1", "m", "completions", None, None, None)
    assert "planted" not in caught.value.message + str(caught.value.remedy)


def test_an_address_with_a_password_is_refused_and_not_shown():
    with pytest.raises(KitError, match="password") as caught:
        bench_target.of_url("http://user:planted@127.0.0.1:1", None, "completions", None, None, None)
    assert "planted" not in str(caught.value)


def test_a_token_is_in_headers_and_in_no_text_of_the_target(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(bench_target.TOKEN_VARIABLE, "planted\n")
    subject = bench_target.of_url("http://127.0.0.1:1", "m", "completions", None, "MI300X", 8)
    assert subject.target.headers == {"authorization": "Bearer planted"}
    assert "planted" not in repr(subject) + json.dumps(subject.facts)


@pytest.mark.parametrize("expires", [True, False])
def test_a_token_that_expires_is_said_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], expires: bool
):
    class Access:
        def __init__(self, *_: object) -> None: ...

        def service(self, *_: object) -> Way:
            return Way("https://api/proxy", {"Authorization": "Bearer t"})

        def expires(self, _: Way) -> bool:
            return expires

    monkeypatch.setattr(cluster_access, "ClusterAccess", Access)
    subject = bench_target.of_stack(PROJECT, "guide", None, "completions", tmp_path)
    assert subject.target.headers == {"Authorization": "Bearer t"}
    assert ("--in-cluster" in capsys.readouterr().err) == expires
