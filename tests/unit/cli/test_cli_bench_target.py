"""What `llmd-oke bench` loads."""

from pathlib import Path

import pytest
from llmd_oke.bench.deployment.directory import Way
from llmd_oke.cli import bench_target
from llmd_oke.experiments.deployed import cluster_access

PROJECT = Path(__file__).parents[3]


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
