"""Releases: versions that belong together, and the traps that upstream's own examples hide."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue.files import values_folder

RELEASES = [found for name in catalogue.release_names() if (found := catalogue.release(name)) is not None]
by_release = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)

GATES = {
    "v1.4.0": {"dataLayer", "flowControl", "prepareDataPlugins"},
    "v1.5.0": {"dataLayer", "enableLegacyMetrics", "flowControl"},
}
"""Feature gates that each version of the endpoint picker's framework registers; it refuses to start with any other."""


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.removeprefix("v").split(".")))


def test_releases_are_in_order_with_the_nearest_side_by_side():
    assert catalogue.release_names() == ["llm-d-0.6.0", "llm-d-0.7.0"]
    assert len({release.order for release in RELEASES}) == len(RELEASES)


@by_release
def test_picker_and_sidecar_are_of_one_version(release: catalogue.Release):
    versions = {
        release.endpoint_picker.image.tag,
        release.endpoint_picker.program.version,
        release.routing_sidecar.image.rsplit(":", 1)[1],
        release.routing_sidecar.program.version,
    }
    assert len(versions) == 1


@by_release
def test_chart_and_crds_are_of_the_version_that_the_picker_is_built_with(release: catalogue.Release):
    expected = {"v0.7.1": "v1.4.0", "v0.8.0": "v1.5.0"}[release.endpoint_picker.image.tag]
    assert release.chart.version == release.crds.version == expected
    assert release.chart.module == release.crds.module


@by_release
def test_only_registered_feature_gates_are_named(release: catalogue.Release):
    assert set(release.endpoint_picker.feature_gates) <= GATES[release.chart.version]


@by_release
def test_prefix_data_is_prepared_by_a_gate_where_there_is_one_and_by_default_later(release: catalogue.Release):
    needed = version(release.chart.version) < (1, 5)
    assert ("prepareDataPlugins" in release.endpoint_picker.feature_gates) is needed


@by_release
def test_the_chart_is_asked_for_the_image_in_its_own_words(release: catalogue.Release):
    keys = (release.chart.image_keys.registry, release.chart.image_keys.repository)
    assert keys == (("hub", "name") if version(release.chart.version) < (1, 5) else ("registry", "repository"))


@by_release
def test_the_picker_is_llm_ds_own_that_knows_prefill_and_decode(release: catalogue.Release):
    image = release.endpoint_picker.image
    assert (image.registry, image.repository) == ("ghcr.io", "llm-d/llm-d-inference-scheduler")


@by_release
def test_routing_decisions_are_counted_by_the_metric_that_is_not_deprecated(release: catalogue.Release):
    assert release.endpoint_picker.decision_metric == "llm_d_inference_scheduler_disagg_decision_total"


@by_release
def test_the_pickers_config_is_of_the_group_that_it_knows(release: catalogue.Release):
    assert release.endpoint_picker.config_api_version == "inference.networking.x-k8s.io/v1alpha1"


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
def test_vllm_has_the_attention_and_reduction_that_amd_measured(release: catalogue.Release):
    assert release.vllm.attention_backend.default == "ROCM_AITER_UNIFIED_ATTN"
    assert release.vllm.environment["VLLM_ROCM_USE_AITER"] == "1"
    assert release.vllm.tensor_parallel_environment == {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT4"}


@by_release
def test_servers_with_a_kv_connector_have_no_backend_that_vllm_refuses_with_one(release: catalogue.Release):
    backend = release.vllm.attention_backend
    assert backend.kv_connector not in backend.refused_with_kv_connector


@by_release
def test_no_variable_is_set_that_nothing_reads(release: catalogue.Release):
    names = {*release.vllm.environment, *release.vllm.tensor_parallel_environment}
    assert not [name for name in names if name.endswith("_VALS")]
    assert "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION" not in release.vllm.environment


@by_release
def test_caches_go_to_folders_that_the_image_may_write(release: catalogue.Release):
    for name in ("AITER_JIT_DIR", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"):
        folder = release.vllm.environment[name]
        assert any(folder == root or folder.startswith(f"{root}/") for root in release.vllm.scratch_folders)


@by_release
def test_every_image_has_a_fixed_version(release: catalogue.Release):
    for image in (release.vllm.image, release.proxy.image, release.routing_sidecar.image):
        tag = image.rsplit("/", 1)[1].partition(":")[2]
        assert tag
        assert tag != "latest"
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
