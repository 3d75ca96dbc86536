"""`scripts/gitlab`: the comment on a merge request and the state of main, asked of a stand-in for GitLab's API."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from http_for_tests import HttpAnswer, HttpRequest, served
from llmd_oke.pipelines.comment import MARK
from stack_files import PROJECT

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "jq"))), reason="no bash, curl or jq")

TOKEN, JOB_TOKEN = "a project token", "a job token"
NOTES = "/api/v4/projects/5/merge_requests/7/notes"


@dataclass
class GitLab:
    """Notes of a merge request, states of jobs by their names, and what was asked."""

    url: str = ""
    notes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    states: dict[str, str] = field(default_factory=dict[str, str])
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def answer(self, request: HttpRequest) -> HttpAnswer:
        path, query = request.url.path, parse_qs(request.url.query)
        self.asked.append((request.method, path))
        if "/jobs/artifacts/" in path:
            found = self.states.get(query["job"][0]) if request.headers["JOB-TOKEN"] == JOB_TOKEN else None
            return HttpAnswer(200, found.encode()) if found else HttpAnswer(404, {})
        if request.headers["PRIVATE-TOKEN"] != TOKEN:
            return HttpAnswer(401, {})
        if path == "/api/v4/user":
            return HttpAnswer(200, {"id": 42})
        form = parse_qs(request.body.decode())
        if request.method == "GET":
            first = (int(query["page"][0]) - 1) * 100
            return HttpAnswer(200, self.notes[first : first + 100])
        if request.method == "POST":
            self.notes.append({"id": len(self.notes), "author": {"id": 42}, "body": form["body"][0]})
        else:
            self.notes[int(path.rpartition("/")[2])]["body"] = form["body"][0]
        return HttpAnswer(200, {})


@pytest.fixture
def gitlab() -> Iterator[GitLab]:
    with served(GitLab()) as there:
        yield there


def run(gitlab: GitLab, *words: str, **own: str) -> subprocess.CompletedProcess[str]:
    known = {
        "CI_API_V4_URL": f"{gitlab.url}/api/v4",
        "CI_PROJECT_ID": "5",
        "CI_DEFAULT_BRANCH": "main",
        "CI_JOB_TOKEN": JOB_TOKEN,
        "MERGE_REQUEST": "7",
        "LLMD_OKE_NOTES_TOKEN": TOKEN,
    }
    argv = ["bash", str(PROJECT / "scripts" / "gitlab"), *words]
    environment = {**os.environ, "no_proxy": "127.0.0.1", **known, **own}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def test_the_merge_request_comment_is_posted_once_and_then_edited(gitlab: GitLab, tmp_path: Path):
    gitlab.notes = [{"id": i, "author": {"id": 1}, "body": f"{MARK} of somebody else"} for i in range(120)]
    file = tmp_path / "comment.md"
    for text in ("first & second=1", "ünother\n\n+ line"):
        file.write_text(f"{MARK}\n\n{text}\n")
        ended = run(gitlab, "note", str(file))
        assert ended.returncode == 0, ended.stderr
    assert len(gitlab.notes) == 121
    assert gitlab.notes[120]["body"] == f"{MARK}\n\nünother\n\n+ line\n"
    assert [item for item in gitlab.asked if item[0] != "GET"] == [("POST", NOTES), ("PUT", f"{NOTES}/120")]


def test_without_an_api_token_a_comment_is_an_artifact_and_a_wrong_one_fails_the_job(gitlab: GitLab, tmp_path: Path):
    (tmp_path / "comment.md").write_text(MARK)
    ended = run(gitlab, "note", str(tmp_path / "comment.md"), LLMD_OKE_NOTES_TOKEN="")
    assert ended.returncode == 0
    assert "an artifact alone" in ended.stderr
    assert gitlab.asked == []
    ended = run(gitlab, "note", str(tmp_path / "comment.md"), LLMD_OKE_NOTES_TOKEN="another")
    assert ended.returncode
    assert "401" in ended.stderr
    assert "another" not in ended.stdout + ended.stderr


def test_a_stacks_state_is_fetched_from_a_gitlab_job_of_the_default_branch(gitlab: GitLab, tmp_path: Path):
    gitlab.states = {"drift prod": '{"version": 3}'}
    ended = run(gitlab, "state", "prod", str(tmp_path / "prod.json"))
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "prod.json").read_text()) == {"version": 3}
    ended = run(gitlab, "state", "dev", str(tmp_path / "dev.json"))
    assert ended.returncode == 0
    assert "no job of main has left a state of dev" in ended.stderr
    assert not (tmp_path / "dev.json").exists()
