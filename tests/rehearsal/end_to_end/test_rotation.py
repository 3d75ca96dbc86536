"""A client's key and the certificate of a front door, rotated by updates of the stack while requests flow."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates_for_tests import certificate, private_key
from llmd_rehearsal.front_door import CLIENT
from user_project import TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "rotation"
HOST = "front-door.llm-d.svc.cluster.local"
NEXT = "sk-next-Hd5kV9bMq2TzXc7RwLp3"
UPDATE = ("rehearse", "--time-scale", TIME_SCALE, "--json", "--no-benchmark", "--stack", STACK)
MOST_GAP_S = 5.0
"""Time without an answer, also where others use the machine."""


@dataclass(frozen=True)
class Rotation:
    """Outcome of requests, and the two updates."""

    cost: dict[str, Any]
    overlap: Ended
    end: Ended


@pytest.fixture(scope="module")
def rotated(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Rotation:
    door = {
        "host": HOST,
        "tls": {"kind": "config"},
        "authentication": {"kind": "api-keys"},
        "uncheckedPods": "accepted",
    }
    project.write(STACK, models=[model(topology="agg-tp1-1r")], frontDoor=door)
    created = project.rehearse(STACK)
    assert created.status == 0, created.errors
    file = project.folder / ".rehearsal" / STACK / "front-door" / "secrets.json"
    settings = json.loads(file.read_text())
    key = private_key()
    renewed, present = certificate(key, HOST).chain, settings["frontDoorCertificate"]["chain"]
    first = settings["frontDoorKeys"][CLIENT]
    known = tmp_path_factory.mktemp("rotation") / "known.json"
    trusted = {"trusted": present + renewed, "renewed": renewed}
    known.write_text(json.dumps({"first": first, "next": NEXT, **trusted}))
    script = Path(__file__).with_name("rotation_load.py")
    words = ("rehearse", "run", "--stack", STACK, "--", sys.executable, str(script), f"https://{HOST}", str(known))
    argv = [sys.executable, "-m", "llmd_oke", *words]
    with subprocess.Popen(argv, env=project.environment(), stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        overlap = {"frontDoorNextKeys": {CLIENT: NEXT}, "frontDoorCertificate": {"chain": renewed, "key": key.pem}}
        file.write_text(json.dumps({**settings, **overlap}))
        both = project.command(*UPDATE)
        assert both.status == 0, both.errors
        assert load.stdout.readline() == "changed\n"
        file.write_text(json.dumps({**settings, **overlap, "frontDoorKeys": {CLIENT: NEXT}, "frontDoorNextKeys": {}}))
        alone = project.command(*UPDATE)
        assert alone.status == 0, alone.errors
        assert load.stdout.readline() == "ended\n"
        cost = json.loads(load.stdout.readline())
    print(json.dumps(cost))
    return Rotation(cost, both, alone)


def test_no_request_fails_while_a_clients_key_and_the_tls_certificate_are_rotated(rotated: Rotation):
    assert rotated.cost["failures"] == []
    assert rotated.cost["sent"] > 100
    assert rotated.cost["longest_gap_s"] < MOST_GAP_S


def test_rotating_a_clients_key_and_the_tls_certificate_only_updates_in_place(rotated: Rotation):
    for update in (rotated.overlap, rotated.end):
        assert set(update.document["update"]["changes"]) <= {"same", "read", "update"}
        assert update.document["update"]["changes"]["update"] <= 4  # two Secrets, the component and the stack
