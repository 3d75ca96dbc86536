"""Chart values against the charts' own, and custom resources against their definitions: neither Helm nor the operator
complains of a key that it doesn't know."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue import container_images, operators
from llmd_oke.catalogue.container_images import Lock, LockedDigest
from llmd_oke.catalogue.operators import HelmChart, Operator
from llmd_oke.operators.helm_operators import chart_values, device_config
from llmd_oke.planning.container_images import kit_images
from llmd_oke.planning.gpu_stack import tolerations
from llmd_oke.values import read_yaml
from llmd_rehearsal.kubernetes_plugin import charts
from pydantic import ValidationError

SHARED_DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
SHAPE = catalogue.shape("BM.GPU.MI300X.8")
assert SHAPE is not None
WANTED = tolerations(SHAPE.node.taints)
PUBLISHED = {"cert-manager": "cert-manager-v1.20.2.yaml", "amd-gpu-operator": "amd-gpu-operator-v1.5.1.yaml"}

_OF_CERT_MANAGER = ("image", "webhook.image", "cainjector.image", "acmesolver.image", "startupapicheck.image")
FREE_FORM: dict[str, set[str]] = {
    "cert-manager": {f"{image}.tag" for image in _OF_CERT_MANAGER},
    "node-feature-discovery": {"image.tag"},
    "amd-gpu-operator": set(),
    "leader-worker-set": set(),
}
"""Paths that the chart's values.yaml shows in a comment alone (`# tag: vX.Y.Z`), and that its templates read."""


def published_values(name: str) -> Any:
    """The chart's values.yaml: as published beside this checkout, or in the chart's module."""
    published = SHARED_DATA / "chart-values" / PUBLISHED.get(name, "absent")
    facts = operators.operator(name)
    source = next(source for source in charts.sources() if source.reference == facts.chart.reference)
    local = source.folder() / "values.yaml" if source.module else Path("absent")
    for path in (published, local):
        if path.is_file():
            return read_yaml(path)
    pytest.skip(f"there is neither {published} nor {local}")


def paths(tree: Any, prefix: str = "") -> Iterator[str]:
    """Every path to a value that is no map with keys."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from paths(value, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix


def has(tree: Any, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


@pytest.mark.parametrize("name", ["cert-manager", "node-feature-discovery", "amd-gpu-operator", "leader-worker-set"])
def test_every_helm_value_that_the_kit_sets_exists_in_its_pinned_chart(name):
    known, chart = published_values(name), operators.operator(name).chart
    given = chart_values(operators.operator(name), WANTED)
    assert [path for path in paths(given) if not has(known, path) and path not in FREE_FORM[name]] == []
    assert not has(known, "controllerManager.manager.tolerration"), "a misspelt one is detected"
    assert chart.version.lstrip("v")[0].isdigit()
    assert chart.repository is not None or chart.artifact in kit_images()


def test_gpu_operator_workers_keep_the_charts_tolerations():
    defaults = published_values("amd-gpu-operator")["node-feature-discovery"]["worker"]["tolerations"]
    given = chart_values(operators.operator("node-feature-discovery"), WANTED)
    assert given["worker"]["tolerations"] == [*defaults, *WANTED]


def test_tolerations_added_to_helm_values_do_not_change_the_catalogues_values():
    facts = operators.operator("node-feature-discovery")
    chart_values(facts, WANTED)
    assert chart_values(facts, [])["worker"] == facts.values["worker"]


def test_an_oci_chart_is_pulled_by_its_locked_digest(monkeypatch: pytest.MonkeyPatch):
    digest = f"sha256:{'1' * 64}"
    chart = operators.operator("cert-manager").chart
    known = Lock(
        images={
            f"{chart.reference.removeprefix('oci://')}:{chart.version}": LockedDigest(digest=digest, source="a test")
        }
    )
    monkeypatch.setattr(container_images, "lock", lambda: known)
    assert chart.pinned == f"oci://quay.io/jetstack/charts/cert-manager@{digest}"


def test_a_rehearsal_renders_its_bundled_chart_whatever_the_locked_digest():
    reference = "oci://registry.k8s.io/nfd/charts/node-feature-discovery"
    source = next(source for source in charts.sources() if source.reference == reference)
    if not source.folder().is_dir():
        pytest.skip(f"{source.folder()} is absent")
    with charts.chart(f"{reference}@sha256:{'1' * 64}", "", "0.18.3") as folder:
        assert (folder / "Chart.yaml").is_file()


@pytest.mark.parametrize(
    "fields",
    [
        {"reference": "cert-manager"},
        {"reference": "charts", "repository": "https://example.com"},
        {"reference": "oci://example.com/chart", "sha256": "0" * 64},
        {"reference": "charts", "repository": "https://example.com", "sha256": "0" * 63},
    ],
)
def test_a_chart_without_a_checksum_needs_a_reason(fields: dict[str, str]):
    with pytest.raises(ValidationError):
        HelmChart(version="v1", **fields)


def test_every_image_of_the_amd_gpu_operators_device_config_has_a_fixed_tag():
    parts = device_config("ns", None, WANTED)["spec"].values()
    images = [value for part in parts for key, value in part.items() if key.lower().endswith("image")]
    assert len(images) == 4
    assert [image for image in images if ":" not in image or "latest" in image] == []


def test_a_newer_chart_is_refused_until_its_images_have_been_reviewed():
    known = operators.operator("kube-prometheus-stack").model_dump()
    with pytest.raises(ValidationError, match=r"images_of has to say that v0.92.0, .* are what 99.0.0 brings"):
        Operator.model_validate({**known, "chart": {**known["chart"], "version": "99.0.0"}})
