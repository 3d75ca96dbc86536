"""Calico's manifest beside OKE's VCN-native network."""

from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke.catalogue import operators
from llmd_oke.operators.calico import manifests, published
from llmd_oke.values import values_folder

STAND_IN = values_folder() / "rehearsal" / "calico.yaml"
FACTS = operators.policy_engine()


def test_calicos_crds_come_before_its_other_objects():
    kinds = [item["kind"] for item in manifests(FACTS, STAND_IN)]
    assert kinds[0] == "CustomResourceDefinition"
    assert kinds.count("CustomResourceDefinition") == 1


def test_every_image_of_the_calico_manifest_is_in_the_catalogue():
    (node,) = (item for item in manifests(FACTS, STAND_IN) if item["kind"] == "DaemonSet")
    (container,) = node["spec"]["template"]["spec"]["containers"]
    assert container["image"].partition("@")[0] in {item.reference for item in FACTS.images}


def test_a_calico_manifest_with_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path))
    cached = tmp_path / "calico" / FACTS.version / "calico-policy-only.yaml"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(STAND_IN.read_bytes())
    with pytest.raises(KitError, match="has SHA-256"):
        published(FACTS)
