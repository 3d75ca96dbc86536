"""Calico's manifest beside OKE's VCN-native network."""

from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.catalogue import operators
from llmd_oke.operators.calico import manifests, published
from llmd_oke.values import values_folder

STAND_IN = values_folder() / "rehearsal" / "calico.yaml"
FACTS = operators.policy_engine()


def declared(path: Path = STAND_IN) -> dict[str, Any]:
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in manifests(FACTS, path)}


def node_pod() -> dict[str, Any]:
    return declared()["DaemonSet/calico-node"]["spec"]["template"]["spec"]


def test_calicos_cni_plug_in_is_not_installed_on_nodes():
    assert "initContainers" not in node_pod()
    assert [volume["name"] for volume in node_pod()["volumes"]] == ["lib-modules"]


def test_calico_handles_okes_interfaces_and_leaves_pod_addresses_to_okes_cni():
    environment = {item["name"]: item["value"] for item in node_pod()["containers"][0]["env"]}
    assert environment["FELIX_INTERFACEPREFIX"] == "oci"
    assert environment["NO_DEFAULT_POOLS"] == "true"
    assert "FELIX_TYPHAK8SSERVICENAME" not in environment


def test_typha_is_left_out_of_the_calico_manifest():
    assert not [name for name in declared() if name.endswith("/calico-typha")]


def test_calicos_crds_come_before_its_other_objects():
    kinds = [name.partition("/")[0] for name in declared()]
    assert kinds[0] == "CustomResourceDefinition"
    assert kinds.count("CustomResourceDefinition") == 1


def test_every_image_of_the_calico_manifest_is_in_the_catalogue():
    images = {item.reference for item in FACTS.images}
    assert node_pod()["containers"][0]["image"].partition("@")[0] in images


def test_a_calico_manifest_with_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path))
    cached = tmp_path / "calico" / FACTS.version / "calico-policy-only.yaml"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(STAND_IN.read_bytes())
    with pytest.raises(KitError, match="has SHA-256"):
        published(FACTS)
