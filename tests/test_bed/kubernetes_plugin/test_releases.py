"""Helm releases: recorded answers of the real plug-in, and the operators' charts against a real API server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml
from kubernetes_control_plane import ControlPlane, program
from kubernetes_recordings import Replay
from llmd_oke.catalogue import operators
from llmd_oke.operators.helm_operators import chart_values
from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.kubernetes_plugin.readiness import WaitLimits
from llmd_rehearsal.kubernetes_plugin.server import start

pytestmark = pytest.mark.rehearsal

CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: rel-cm}
data: {num: "{{ .Values.num }}"}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: rel-web}
spec:
  selector: {matchLabels: {app: rel-web}}
  template:
    metadata:
      labels:
        app: {{ if .Values.bad }}other{{ else }}rel-web{{ end }}
        {{- with .Values.sim }}
        sim: {{ . }}
        {{- end }}
    spec: {containers: [{name: c, image: nginx}]}
"""


@pytest.fixture
def helm() -> Path:
    if not program("helm").is_file():
        pytest.skip("no helm (looked in LLMD_OKE_PROGRAMS)")
    return program("helm")


@pytest.fixture
def small_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recordings' chart, `./chart`."""
    templates = tmp_path / "chart" / "templates"
    templates.mkdir(parents=True)
    (templates.parent / "Chart.yaml").write_text("{apiVersion: v2, name: small, version: 0.1.0}")
    (templates / "config-map.yaml").write_text(CONFIG_MAP)
    (templates / "deployment.yaml").write_text(DEPLOYMENT)
    monkeypatch.chdir(tmp_path)
    return templates.parent


@pytest.fixture
def api(control_plane: ControlPlane) -> Iterator[httpx2.Client]:
    with control_plane.client() as client:
        yield client


@pytest.mark.usefixtures("small_chart")
def test_the_stand_in_answers_for_helm_releases_as_recorded_from_the_real_plug_in(
    control_plane: ControlPlane, api: httpx2.Client, recordings: Path, helm: Path
) -> None:
    api.post("/api/v1/namespaces", json={"metadata": {"name": "c30"}}).raise_for_status()
    server = start(limits=WaitLimits(settle_s=1), helm=str(helm))
    actions = {"a chart with one ConfigMap and one Deployment": lambda _: None}
    [recording] = recordings.glob("30-*.jsonl")
    texts = {"<kubeconfig>": control_plane.kubeconfig_text()}
    deviations = Replay(server.port, texts, actions, lambda _: None).run(recording)
    server.stop()
    assert not deviations, "\n".join(deviations)


@pytest.mark.parametrize("name", ["cert-manager", "node-feature-discovery", "amd-gpu-operator"])
def test_operators_charts_accept_the_kits_values_and_render(name: str, helm: Path) -> None:
    """A value of another type than the chart's schema or templates expect is refused."""
    facts = operators.operator(name)
    source = next(source for source in charts.sources() if source.reference == facts.chart.reference)
    if not source.folder().is_dir():
        pytest.skip(f"the chart is not on this machine: {source.folder()}")
    values = yaml.safe_dump(chart_values(facts, [{"key": "amd.com/gpu", "operator": "Exists"}]))
    with charts.chart(facts.chart.reference, facts.chart.repository or "", facts.chart.version) as folder:
        version = ["--kube-version", "v1.34.2"]
        command = [helm, "template", facts.release, folder, "--namespace", facts.namespace, "--values", "-", *version]
        done = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = {document["kind"] for document in yaml.safe_load_all(done.stdout) if document}
    assert "Deployment" in kinds
