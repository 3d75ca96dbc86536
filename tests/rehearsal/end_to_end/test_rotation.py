"""Credentials that are rotated while requests flow: a front door's and those of model sources by updates, a front
door's, a Gateway's and a registry's in their Secrets, and the passphrase of the engine's state.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from certificates_for_tests import certificate, private_key
from llmd_rehearsal.front_door import CLIENT
from llmd_rehearsal.inventory import BEHIND_GATEWAY
from llmd_rehearsal.model_sources import source_hosts
from llmd_rehearsal.private_registry import USER, docker_config
from llmd_rehearsal.programs import locate
from llmd_rehearsal.source_credentials import FOLDER as SOURCES
from llmd_rehearsal.source_credentials import TOKEN, URL, ValidCredentials, valid_credentials_file
from test_losses import tell
from test_rollouts import loaded
from user_project import TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK, BEHIND, PULLING = "rotation", "rotation-behind", "rotation-pulling"
HOST, GATEWAY_HOST = "front-door.llm-d.svc.cluster.local", "llm.example.com"
NEXT = "sk-next-Hd5kV9bMq2TzXc7RwLp3"
UPDATE = ("rehearse", "--time-scale", TIME_SCALE, "--json", "--no-benchmark", "--stack")
MIRROR = {"prefix": "iad.ocir.io/namespace/mirror", "pullSecret": "ocir"}
OWN_CERTIFICATE = "own-certificate"
NODE_DISK = {"kind": "node-disk"}
PREWARM = "prewarm-gpt-oss-120b"
COMPLETE = "openai/gpt-oss-120b: complete in"
DOWNLOAD = Path(__file__).with_name("fresh_download.py")
MOST_GAP_S = 5.0
"""Time without an answer, also where others use the machine."""

RUNNING = """
import json
from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Pod
running = {}
for pod in Client(KubeConfig.from_env(), trust_env=False).list(Pod, namespace="llm-d"):
    if not any(owner.kind == "Job" for owner in pod.metadata.ownerReferences or ()):
        statuses = [*(pod.status.initContainerStatuses or ()), *(pod.status.containerStatuses or ())]
        running[pod.metadata.uid] = [status.restartCount for status in statuses]
print(json.dumps(running))
"""
"""Tells the pods that aren't those of Jobs, and how often their containers were restarted."""

REPLACE = """
import json
import sys
from pathlib import Path
from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Secret
changed = {"stringData": json.loads(Path(sys.argv[2]).read_text())}
Client(KubeConfig.from_env(), trust_env=False).patch(Secret, sys.argv[1], changed, namespace="llm-d")
"""
"""Changes a Secret in place, as `kubectl apply` does."""


@dataclass
class Load:
    """Requests that flow, and what became of them once they have ended."""

    output: IO[str]
    cost: dict[str, Any] = field(default_factory=dict[str, Any])

    def await_line(self, expected: str) -> None:
        assert self.output.readline() == f"{expected}\n"

    def assert_nothing_failed(self) -> None:
        assert self.cost["failures"] == []
        assert self.cost["sent"] > 60
        assert self.cost["longest_gap_s"] < MOST_GAP_S


@contextmanager
def flowing(project: Project, stack: str, address: str, known: Mapping[str, str], folder: Path) -> Iterator[Load]:
    """Requests from inside of the local cluster until the end of the context."""
    file, end = folder / "known.json", folder / "end"
    file.write_text(json.dumps(known))
    words = (sys.executable, str(Path(__file__).with_name("rotation_load.py")), address, str(file), str(end))
    argv = [sys.executable, "-m", "llmd_oke", "rehearse", "run", "--stack", stack, "--", *words]
    with subprocess.Popen(argv, env=project.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        load = Load(process.stdout)
        try:
            load.await_line("flowing")
            yield load
        finally:
            end.touch()
            rest = process.stdout.read()
    load.cost = json.loads(rest.splitlines()[-1])
    print(stack, json.dumps(load.cost))


@dataclass(frozen=True)
class Rotation:
    """The load, and the updates: with both keys, with the next one alone, and with another secret of cache salts."""

    load: Load
    overlap: Ended
    end: Ended
    salts: Ended


@pytest.fixture(scope="module")
def rotated(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Rotation:
    door = {
        "host": HOST,
        "tls": {"kind": "config"},
        "authentication": {"kind": "api-keys"},
        "uncheckedPods": "accepted",
        "cacheIsolation": "client",
    }
    served = [model(topology="agg-tp1-1r")]
    project.write(STACK, models=served, frontDoor=door, storage={"modelCache": NODE_DISK}, secrets=[TOKEN])
    created = project.rehearse(STACK)
    assert created.status == 0, created.errors
    file = project.folder / ".rehearsal" / STACK / "front-door" / "secrets.json"
    settings = json.loads(file.read_text())
    key = private_key()
    renewed, present = certificate(key, HOST).chain, settings["frontDoorCertificate"]["chain"]
    first = settings["frontDoorKeys"][CLIENT]
    known = {"first": first, "next": NEXT, "trusted": present + renewed, "renewed": renewed}
    with flowing(project, STACK, f"https://{HOST}", known, tmp_path_factory.mktemp("rotation")) as load:
        overlap = {"frontDoorNextKeys": {CLIENT: NEXT}, "frontDoorCertificate": {"chain": renewed, "key": key.pem}}
        file.write_text(json.dumps({**settings, **overlap}))
        both = project.command(*UPDATE, STACK)
        assert both.status == 0, both.errors
        load.await_line("changed")
        last = {**settings, **overlap, "frontDoorKeys": {CLIENT: NEXT}, "frontDoorNextKeys": {}}
        file.write_text(json.dumps(last))
        alone = project.command(*UPDATE, STACK)
        assert alone.status == 0, alone.errors
        load.await_line("ended")
        change_passphrase(project)
        file.write_text(json.dumps({**last, "frontDoorCacheSecret": secrets.token_hex(32)}))
        salts = project.command(*UPDATE, STACK)
        assert salts.status == 0, salts.errors
    return Rotation(load, both, alone, salts)


def change_passphrase(project: Project) -> None:
    """Have the state of the rehearsed stack encrypted by another passphrase, as the how-to page says."""
    folder, new = project.folder / ".rehearsal" / STACK, secrets.token_urlsafe(32)
    known = folder / "passphrase"
    own = {
        "PULUMI_BACKEND_URL": f"file://{folder / 'backend'}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(known),
        "PULUMI_HOME": str(folder / "pulumi"),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }
    pulumi = str(Path(os.environ["LLMD_OKE_PROGRAMS"]) / "pulumi")
    words = ("stack", "change-secrets-provider", "passphrase", "--stack", STACK, "--cwd", str(folder / "project"))
    argv, environment = [pulumi, *words], {**os.environ, **own}
    done = subprocess.run(argv, env=environment, input=f"{new}\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known.write_text(new)


def test_no_request_fails_while_a_front_doors_credentials_are_rotated(rotated: Rotation):
    rotated.load.assert_nothing_failed()


def test_rotating_a_front_doors_credentials_replaces_no_object_and_restarts_no_pod(rotated: Rotation):
    for update in (rotated.overlap, rotated.end, rotated.salts):
        assert set(update.document["update"]["changes"]) <= {"same", "read", "update"}
        assert update.document["update"]["changes"]["update"] <= 4  # two Secrets, the component and the stack


def inside(project: Project, stack: str, *words: str) -> str:
    """Run Python inside of the local cluster and return what it prints."""
    return project.inside(stack, sys.executable, *words).output


@dataclass(frozen=True)
class SourceRotation:
    """The load while a credential of a model source was replaced, the update that did so, the lines that a download
    printed before and after it, and the pods before and after all, with their containers' restarts.
    """

    load: Load
    refused: str
    update: Ended
    downloaded: str
    before: dict[str, list[int]]
    after: dict[str, list[int]]

    def assert_unnoticed(self) -> None:
        self.load.assert_nothing_failed()
        assert self.update.document["update"]["changes"].keys() <= {"same", "read", "update"}
        assert self.update.document["update"]["changes"]["update"] <= 3  # the Secret, its component and the stack
        assert self.before == self.after


def rotate_source(project: Project, stack: str, known: Mapping[str, str], told: str, folder: Path) -> SourceRotation:
    """Give a stack another token and another link while requests flow. The old ones are revoked before, so that a
    download that starts then fails, with the words `told`.
    """
    state = project.folder / ".rehearsal" / stack
    file = state / SOURCES / "secrets.json"
    token, request = f"hf_{secrets.token_hex(17)}", secrets.token_urlsafe(24)
    valid = ValidCredentials(tokens=(token,), requests=(request,))
    with flowing(project, stack, f"https://{HOST}", known, folder) as load:
        before = json.loads(inside(project, stack, "-c", RUNNING))
        valid_credentials_file(state).write_text(valid.model_dump_json())
        refused = inside(project, stack, str(DOWNLOAD), PREWARM, "later", told)
        file.write_text(json.dumps({**json.loads(file.read_text()), TOKEN: token, URL: source_hosts().link(request)}))
        update = project.command(*UPDATE, stack)
        assert update.status == 0, update.errors
        downloaded = inside(project, stack, str(DOWNLOAD), PREWARM, "later", COMPLETE)
        after = json.loads(inside(project, stack, "-c", RUNNING))
    return SourceRotation(load, refused, update, downloaded, before, after)


@pytest.mark.usefixtures("rotated")
def test_a_download_that_a_revoked_hugging_face_token_ended_goes_on_with_the_next(project: Project, tmp_path: Path):
    settings = json.loads((project.folder / ".rehearsal" / STACK / "front-door" / "secrets.json").read_text())
    chain = settings["frontDoorCertificate"]["chain"]
    known = {"first": settings["frontDoorKeys"][CLIENT], "trusted": chain, "renewed": chain}
    rotation = rotate_source(
        project, STACK, known, "HTTP 401 Unauthorized: the token is missing or not valid", tmp_path
    )
    rotation.assert_unnoticed()


@pytest.fixture(scope="module")
def behind(project: Project) -> str:
    """A stack whose Gateway has a certificate; the certificate."""
    if missing := [name for name in BEHIND_GATEWAY if locate(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: scripts/test builds them")
    gateway = {"mode": "create", "provider": "envoy-gateway", "host": GATEWAY_HOST, "tls": "certificate"}
    served = model(topology="agg-tp1-1r", router={"mode": "gateway", "route": {"hosts": [GATEWAY_HOST]}})
    project.write(BEHIND, models=[served], gateway=gateway)
    created = project.rehearse(BEHIND)
    assert created.status == 0, created.errors
    return (project.folder / ".rehearsal" / BEHIND / "gateway" / "chain.pem").read_text()


def replace(project: Project, stack: str, secret: str, data: Mapping[str, str], folder: Path) -> None:
    file = folder / "data.json"
    file.write_text(json.dumps(data))
    inside(project, stack, "-c", REPLACE, secret, str(file))


def test_no_request_fails_while_the_certificate_of_a_gateway_is_rotated(project: Project, behind: str, tmp_path: Path):
    key = private_key()
    renewed = certificate(key, GATEWAY_HOST).chain
    known = {"first": "none", "trusted": behind + renewed, "renewed": renewed}
    with flowing(project, BEHIND, f"https://{GATEWAY_HOST}", known, tmp_path) as load:
        replace(project, BEHIND, "certificate", {"tls.crt": renewed, "tls.key": key.pem}, tmp_path)
        load.await_line("changed")
    load.assert_nothing_failed()


def write_pulling(project: Project, **changes: Any) -> None:
    """Write a stack whose images come from a private registry, whose weights come from a bucket, and whose front door
    has its certificate from a Secret.
    """
    project.write(
        PULLING,
        models=[model(topology="agg-tp1-2r")],
        registryMirror=MIRROR,
        frontDoor={"host": HOST, "tls": {"kind": "secret", "name": OWN_CERTIFICATE}},
        storage={"modelCache": NODE_DISK, "prewarm": {"source": "object-storage"}},
        **changes,
    )


@pytest.fixture(scope="module")
def pulling(project: Project) -> str:
    """Deploy the stack of `write_pulling` and return the certificate in its Secret."""
    write_pulling(project)
    created = project.rehearse(PULLING)
    assert created.status == 0, created.errors
    return (project.folder / ".rehearsal" / PULLING / "front-door" / "chain.pem").read_text()


@pytest.fixture(scope="module")
def replaced(project: Project, pulling: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The certificate that took the place of the first one in its Secret, while requests flowed."""
    key, folder = private_key(), tmp_path_factory.mktemp("replaced")
    renewed = certificate(key, HOST).chain
    known = {"first": "none", "trusted": pulling + renewed, "renewed": renewed}
    before = json.loads(inside(project, PULLING, "-c", RUNNING))
    with flowing(project, PULLING, f"https://{HOST}", known, folder) as load:
        replace(project, PULLING, OWN_CERTIFICATE, {"tls.crt": renewed, "tls.key": key.pem}, folder)
        load.await_line("changed")
    load.assert_nothing_failed()
    assert json.loads(inside(project, PULLING, "-c", RUNNING)) == before
    return renewed


def test_no_request_fails_while_a_front_doors_certificate_is_replaced_in_its_secret(replaced: str):
    assert replaced


def test_a_download_that_a_deleted_link_to_a_bucket_ended_goes_on_with_the_next_link(
    project: Project, replaced: str, tmp_path: Path
):
    known = {"first": "none", "trusted": replaced, "renewed": replaced}
    rotation = rotate_source(project, PULLING, known, "HTTP 404 Not Found: the link has ended or was deleted", tmp_path)
    rotation.assert_unnoticed()


@pytest.mark.usefixtures("pulling")
def test_no_request_fails_while_an_image_pull_secret_and_the_image_are_changed(project: Project, tmp_path: Path):
    accounts = project.folder / ".rehearsal" / PULLING / "registry" / "accounts.json"
    (first,), second = json.loads(accounts.read_text())[USER], secrets.token_urlsafe(24)
    with loaded(project, PULLING, tmp_path) as load:
        began_s = time.monotonic()
        accounts.write_text(json.dumps({USER: [first, second]}))
        replace(project, PULLING, "ocir", {".dockerconfigjson": docker_config("iad.ocir.io", second)}, tmp_path)
        accounts.write_text(json.dumps({USER: [second]}))
        write_pulling(project, release="llm-d-0.10.0")
        updated = project.command(*UPDATE, PULLING)
    assert updated.status == 0, updated.errors
    tell("an image pull secret, then an update to another image", load, began_s)
    assert load.failures == []
    assert load.longest_gap_s < MOST_GAP_S
