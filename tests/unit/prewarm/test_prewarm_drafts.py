"""Drafts that are put beside a model's weights, against a loopback stand-in for those who have them."""

from pathlib import Path

from hub_for_tests import COMMIT, FILES, REPOSITORY
from llmd_pods.prewarm import __main__ as program


def run(cache: Path, *drafts: str) -> int:
    given = [f"--draft={draft}" for draft in drafts]
    return program.main([f"--cache={cache}", f"--repository={REPOSITORY}", f"--revision={COMMIT}", *given])


def test_a_draft_model_is_downloaded_beside_the_model_only_once(hub, tmp_path):
    assert run(tmp_path, f"{REPOSITORY}@main") == 0
    record = tmp_path / ".llmd-oke" / "models--owner--model@main.json"
    assert record.is_file()
    snapshot = tmp_path / "hub" / "models--owner--model" / "snapshots" / COMMIT
    assert (snapshot / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]
    hub.requests.clear()
    assert run(tmp_path, f"{REPOSITORY}@main") == 0
    assert hub.requests == []


def test_a_missing_repository_of_a_draft_model_is_an_error(hub, tmp_path, capsys):
    assert run(tmp_path, f"owner/none@{COMMIT}") == 1
    assert "owner/none" in capsys.readouterr().err
