"""The Certificate of a front door with an issuer: the real API server takes it by cert-manager's definition, and the
command of its alert's page shows what cert-manager says of it.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_api import ApiServer
from kubernetes_control_plane import ControlPlane, program
from llmd_oke.catalogue.operators import operator
from llmd_oke.testing import render
from llmd_rehearsal.kubernetes_plugin import charts
from stack_files import stack

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "dev"))

from documented_commands import documented_commands

pytestmark = [
    pytest.mark.rehearsal,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl"),
]

COMMAND = next(command.text for command in documented_commands() if command.text.startswith("kubectl describe cert"))
"""As docs/alerts/certificate-expires.md has it."""

WAITING = {
    "type": "Ready",
    "status": "False",
    "reason": "DoesNotExist",
    "message": "Issuing certificate as Secret does not exist",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
"""What cert-manager 1.20.2 says as long as no issuer answers: internal/controller/certificates/policies/checks.go."""


@pytest.fixture
def api_server(control_plane: ControlPlane) -> Iterator[ApiServer]:
    """An API server with the definitions of cert-manager's chart, which no other chart could install beside them."""
    chart = operator("cert-manager").chart
    source = charts.find(chart.reference, chart.repository or "", chart.version)
    if not program("helm").is_file() or not source.folder().is_dir():
        pytest.skip("no helm, or no chart of cert-manager on this machine: scripts/test gets both")
    with charts.chart(chart.reference, chart.repository or "", chart.version) as folder:
        words = (program("helm"), "template", "cert-manager", folder, "--set", "crds.enabled=true")
        text = subprocess.run((*words, "--kube-version", "v1.34.2"), capture_output=True, text=True, check=True).stdout
    definitions = [item for item in yaml.safe_load_all(text) if item and item["kind"] == "CustomResourceDefinition"]
    with control_plane.client() as client:
        server = ApiServer(client)
        for definition in definitions:
            server.define(definition)
        yield server
        for definition in definitions:
            server.forget(definition)


def test_the_documented_command_shows_cert_managers_words_on_a_certificate(
    api_server: ApiServer, control_plane: ControlPlane
):
    door = {"host": "llm.example.com", "tls": {"kind": "issuer", "name": "internal"}}
    certificate: dict[str, Any] = render(stack(frontDoor=door)).kubernetes("Certificate", "front-door")
    namespace = api_server.namespace(certificate["metadata"]["namespace"])
    api_server.apply(certificate)
    api_server.client.patch(
        f"{api_server.path(certificate)}/status",
        content=json.dumps({"status": {"conditions": [WAITING]}}),
        headers={"Content-Type": "application/merge-patch+json"},
    ).raise_for_status()
    words = COMMAND.replace("NAMESPACE", namespace).split()
    known = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig)}
    shown = subprocess.run(words, env=known, capture_output=True, text=True, check=True).stdout
    assert [line in shown for line in ("llm.example.com", "internal", WAITING["message"])] == [True] * 3
