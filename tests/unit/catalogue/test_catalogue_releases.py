"""Releases: versions that belong together, and the traps that upstream's own examples hide."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue.files import values_folder
from llmd_oke.catalogue.releases import overridden, release_of_former_name

RELEASES = [found for name in catalogue.release_names() if (found := catalogue.release(name)) is not None]
by_release = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)


def test_releases_are_in_order_with_the_nearest_side_by_side():
    assert catalogue.release_names() == ["llm-d-0.6.0", "llm-d-0.7.0", "llm-d-0.9.0"]
    assert len({release.order for release in RELEASES}) == len(RELEASES)


@by_release
def test_picker_and_sidecar_are_of_one_version(release: catalogue.Release):
    versions = {
        release.endpoint_picker.image.tag,
        release.endpoint_picker.program.version,
        release.routing_sidecar.image.tag,
        release.routing_sidecar.program.version,
    }
    assert len(versions) == 1


@by_release
def test_definitions_are_of_the_version_that_the_picker_is_built_with(release: catalogue.Release):
    expected = {"v0.7.1": "v1.4.0", "v0.8.0": "v1.5.0", "v0.10.0": "v1.5.0"}[release.endpoint_picker.image.tag]
    assert release.crds.version == expected


@by_release
def test_what_is_known_of_a_picker_is_of_the_version_that_the_release_has(release: catalogue.Release):
    assert release.endpoint_picker.dialect.version == release.endpoint_picker.image.tag


@by_release
def test_routing_decisions_are_counted_by_the_metric_that_is_not_deprecated(release: catalogue.Release):
    names = {"v0.10.0": "llm_d_epp_disagg_decision_total"}
    expected = names.get(release.endpoint_picker.image.tag, "llm_d_inference_scheduler_disagg_decision_total")
    assert release.endpoint_picker.dialect.metrics.decisions == expected


def test_former_names_are_of_the_release_whose_picker_they_had():
    assert release_of_former_name("llm-d-0.7") is catalogue.release("llm-d-0.6.0")
    assert release_of_former_name("llm-d-0.8") is catalogue.release("llm-d-0.7.0")
    assert release_of_former_name("llm-d-0.6.0") is None


def test_images_of_the_removed_repository_are_said_to_be_gone():
    gone = {release.name for release in RELEASES if release.images_gone}
    assert gone == {r.name for r in RELEASES if r.endpoint_picker.image.repository == "llm-d/llm-d-inference-scheduler"}


def test_an_override_replaces_what_it_names_and_nothing_else():
    base = catalogue.release("llm-d-0.9.0")
    assert base is not None
    router = catalogue.release("llm-d-0.6.0")
    assert router is not None
    changed = overridden(base, catalogue.Override(router="llm-d-0.6.0", quick_reduce="INT4"))
    assert (changed.endpoint_picker, changed.routing_sidecar) == (router.endpoint_picker, router.routing_sidecar)
    assert (changed.vllm.image, changed.crds, changed.name) == (base.vllm.image, base.crds, base.name)
    assert changed.vllm.quick_reduce == "INT4"
    assert overridden(base, catalogue.Override()) == base


@by_release
def test_no_metric_flag_is_passed_that_the_picker_exits_on(release: catalogue.Release):
    text = (values_folder() / "releases" / f"{release.name}.yaml").read_text()
    for flag in ("queued-requests-metric", "running-requests-metric", "cache-usage-percentage-metric", "-info-metric"):
        assert flag not in text


@by_release
def test_the_sidecar_speaks_nixl_and_plain_http(release: catalogue.Release):
    arguments = release.routing_sidecar.arguments
    assert "--kv-connector=nixlv2" in arguments
    assert "--secure-proxy=false" in arguments
    assert not any(argument.startswith("--connector") for argument in arguments)


@by_release
def test_the_proxy_logs_little_and_has_a_bound_on_its_threads(release: catalogue.Release):
    arguments = list(release.proxy.arguments)
    assert arguments[arguments.index("--log-level") + 1] == "warn"
    assert int(arguments[arguments.index("--concurrency") + 1]) >= 1
    assert "--cpuset-threads" not in arguments


@by_release
def test_vllm_has_the_attention_that_amd_measured(release: catalogue.Release):
    assert release.vllm.attention_backend.default == "ROCM_AITER_UNIFIED_ATTN"
    assert release.vllm.environment["VLLM_ROCM_USE_AITER"] == "1"


@by_release
def test_servers_with_a_kv_connector_have_no_backend_that_vllm_refuses_with_one(release: catalogue.Release):
    backend = release.vllm.attention_backend
    assert backend.kv_connector not in backend.refused_with_kv_connector


@by_release
def test_no_release_changes_answers_or_hides_the_kernels_of_its_image(release: catalogue.Release):
    assert not [name for name in release.vllm.environment if "QUICK_REDUCE" in name or name == "AITER_JIT_DIR"]


@by_release
def test_blocks_are_those_of_amds_overlays_where_cache_is_handed_over(release: catalogue.Release):
    assert release.vllm.block_size.kv_connector == 128


@by_release
def test_caches_go_to_folders_that_the_image_may_write(release: catalogue.Release):
    for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"):
        folder = release.vllm.environment[name]
        assert any(folder == root or folder.startswith(f"{root}/") for root in release.vllm.scratch_folders)


@by_release
def test_every_image_has_a_fixed_version(release: catalogue.Release):
    for image in (release.vllm.image, release.proxy.image, release.routing_sidecar.image):
        assert image.tag != "latest"
    assert release.endpoint_picker.image.tag != "latest"


@by_release
def test_crds_are_the_four_less_the_import_that_nothing_here_uses(release: catalogue.Release):
    assert [name.rsplit("_", 1)[1] for name in sorted(release.crds.files)] == [
        "inferencepools.yaml",
        "inferencemodelrewrites.yaml",
        "inferenceobjectives.yaml",
    ]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in release.crds.files.values())


@by_release
def test_digests_are_those_of_the_published_files(release: catalogue.Release):
    go_path = Path(os.environ.get("GOPATH", Path.home() / "go"))
    folder = go_path / "pkg" / "mod" / f"{release.crds.module}@{release.crds.version}" / release.crds.folder
    if not folder.is_dir():
        pytest.skip(f"the Go module cache has no {release.crds.module} {release.crds.version}")
    found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in release.crds.files}
    assert found == release.crds.files
