"""Commands of the pages that need a deployed stack, in one rehearsal, each by a shell inside it."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from certificates_for_tests import certificate, private_key
from llmd_oke.config import stack_file
from llmd_oke.values import read_yaml
from llmd_rehearsal.inventory import WATCHING
from llmd_rehearsal.programs import locate
from llmd_rehearsal.prometheus_operator import PROMETHEUS_URL
from user_project import ROOT, Ended, Project

sys.path.insert(0, str(ROOT / "dev"))

from documented_commands import CommandPlace, documented_commands

pytestmark = [
    pytest.mark.engine,
    pytest.mark.rehearsal,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl"),
]

STACK = "S"
BY_HAND = "by-hand"
"""Namespace of what kubectl applies: objects of the engine's have an owner."""

WORDS = dict.fromkeys(("STACK", "prod", "guide"), STACK) | dict.fromkeys(("NODE", "A"), "mi300x-0")
WORDS |= {"NAMESPACE": "llm-d", "MODEL": "gpt-oss-120b", "NAME": "own-tls"}
"""What somebody writes in the place of words in capitals; the pages call one stack by several names."""

SMALLER = {
    "poisson:100,200,400 --duration 1m": "poisson:1,2 --duration 10s",
    " --prometheus http://prometheus-operated.monitoring.svc:9090": "",
    "<pod>": "$(kubectl -n llm-d get pods -o name -l llm-d.ai/role=decode)",
}
"""Loads that two servers on a small machine bear, and what has another name there."""

SIGN_IN = "--docker-username=… --docker-password=…"
PULL_SECRET = f"""kubectl create secret docker-registry ocir -n llm-d --docker-server=iad.ocir.io {SIGN_IN} \\
--dry-run=client -o yaml | kubectl apply -f -"""
"""As docs/how-to/rotate-credentials.md has it."""

ENDLESS = re.compile(r"--watch\b|port-forward")
LOOK_S = 20
"""How long something that doesn't end by itself is looked at."""

LIMIT_S = 600
"""For a command that ends by itself; the longest deploys a stack wave by wave."""

ENDED_BY_US = (124, 130)
"""Statuses of `timeout` and of a command that was interrupted."""

ENDED_BY_HEAD = 141
"""Status of a command whose reader has read enough (SIGPIPE)."""

COMMANDS = [command for command in documented_commands() if command.place is CommandPlace.REHEARSED]


@pytest.fixture(scope="module")
def rehearsed(project: Project) -> Project:
    """The stack that the pages call S, on two nodes, of which one is free: with a front door, weights on the node's
    disk, Prometheus and a registry of the user's; its objects as YAML for another namespace, a certificate, and a
    benchmark of which passports tell.
    """
    if missing := [name for name in WATCHING if locate(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: `llmd-oke rehearse programs --tests` builds them")
    pools = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}]
    smoke = {"requests": 8, "concurrency": 2, "thresholds": {"minRemotePrefillShare": 0}}  # commands are the question
    stack = {"storage": {"modelCache": {"kind": "node-disk"}}, "frontDoor": {}, "monitoring": "install", "smoke": smoke}
    # Of copies, also those of images that left their registries are rendered: of a release whose router stands in.
    mirror = {"prefix": "iad.ocir.io/namespace/mirror", "pullSecret": "ocir"}
    project.write(STACK, gpuPools=pools, registryMirror=mirror, **stack)
    ended = project.rehearse(STACK)
    assert ended.status == 0, ended.errors
    key = private_key()
    (project.folder / "privkey.pem").write_text(key.pem)
    (project.folder / "fullchain.pem").write_text(certificate(key, "llm.example.com").chain)
    rehearsed = read_yaml(stack_file(deployed(project), STACK))["config"]["llmd-oke:stack"]
    project.write(BY_HAND, **{**rehearsed, "namespace": BY_HAND})
    rendered = project.command("render", "--stack", BY_HAND, "--output", str(project.folder / "deploy" / STACK))
    assert rendered.status == 0, rendered.errors
    measured = inside(project, f"llmd-oke smoke --stack {STACK}")
    assert measured.status == 0, measured.errors
    return project


def deployed(project: Project) -> Path:
    """The project that the engine has deployed, with the stack file that is rehearsed."""
    return project.folder / ".rehearsal" / STACK / "project"


def signed_in(project: Project) -> str:
    """The account of the rehearsed registry, as options of `kubectl create secret docker-registry`."""
    file = project.folder / ".rehearsal" / STACK / "registry" / "dockerconfig.json"
    [account] = json.loads(file.read_text())["auths"].values()
    return f"--docker-username={account['username']} --docker-password={account['password']}"


def inside(project: Project, text: str) -> Ended:
    """Run a command in the rehearsal, with the stack file that is rehearsed; one of rehearsals itself where it is
    typed, beside the project.
    """
    for theirs, here in SMALLER.items():
        text = text.replace(theirs, here)
    line = re.sub(rf"(?<![-\w])(?:{'|'.join(WORDS)})\b", lambda word: WORDS[word[0]], text)
    line = line.replace("./scripts/rehearse", "llmd-oke rehearse").replace(SIGN_IN, signed_in(project))
    line = re.sub(r"^llmd-oke (status|support) ", rf"llmd-oke \1 --prometheus {PROMETHEUS_URL} ", line)
    if line.startswith("llmd-oke rehearse "):
        return project.command(*shlex.split(line)[1:])
    files = [f"ln -sfn {project.folder}/{name} {name}" for name in ("deploy", "fullchain.pem", "privkey.pem")]
    script = "\n".join(["set -eo pipefail", f"cd {deployed(project)}", *files, line])
    limit_s = LOOK_S if ENDLESS.search(line) else LIMIT_S
    limited = ("timeout", "--signal", "INT", str(limit_s), "bash", "-c", script)
    return project.command("rehearse", "run", "--stack", STACK, "--", *limited)


@pytest.mark.parametrize("text", sorted({command.text for command in COMMANDS}))
def test_a_documented_command_runs_in_a_rehearsed_stack(rehearsed: Project, text: str) -> None:
    is_deployment = "deploy/S" in text and "kubectl apply" in text
    if is_deployment:  # as a user does before: pods of another namespace pull images by a Secret of their own
        script = f"kubectl create namespace {BY_HAND}\n{PULL_SECRET.replace('llm-d', BY_HAND)}"
        prepared = inside(rehearsed, script)
        assert prepared.status == 0, prepared.errors
    ended = inside(rehearsed, text)
    is_cut = (ended.status in ENDED_BY_US and ENDLESS.search(text)) or (
        ended.status == ENDED_BY_HEAD and "| head" in text
    )
    assert ended.status == 0 or is_cut, ended.output + ended.errors
    if is_deployment:  # its servers take the node that is free
        deleted = inside(rehearsed, f"kubectl delete namespace {BY_HAND}")
        assert deleted.status == 0, deleted.errors
