"""Releases: versions that belong together, and the traps that upstream's own examples hide."""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_for_tests import HttpAnswer, HttpRequest, address_of, http_server
from llmd_base.errors import KitError
from llmd_oke import catalogue, values
from llmd_oke.catalogue.endpoint_pickers import KnownLimit
from llmd_oke.catalogue.releases import (
    CrdFiles,
    Release,
    crd_manifests,
    default_release,
    release_of_former_name,
    with_override,
)
from llmd_oke.config.model import HANDING_OVER
from llmd_oke.values import values_folder
from stack_files import known_release

RELEASES = [known_release(name) for name in catalogue.release_names()]
by_release = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)


def test_releases_are_listed_from_oldest_to_newest_and_known_by_their_former_names():
    assert catalogue.release_names() == ["llm-d-0.6.0", "llm-d-0.7.0", "llm-d-0.9.0", "llm-d-0.10.0"]
    assert len({release.order for release in RELEASES}) == len(RELEASES)
    former = [release_of_former_name(name) for name in ("llm-d-0.7", "llm-d-0.8", "llm-d-0.6.0")]
    assert former == [catalogue.release("llm-d-0.6.0"), catalogue.release("llm-d-0.7.0"), None]


@by_release
def test_picker_sidecar_and_the_pickers_config_format_of_a_release_have_one_version(release: catalogue.Release):
    picker, sidecar = release.endpoint_picker, release.routing_sidecar
    versions = {picker.image.tag, picker.program.version, sidecar.image.tag, sidecar.program.version}
    assert versions == {picker.dialect.version}
    crds_by_picker = {"v0.7.1": "v1.4.0", "v0.8.0": "v1.5.0", "v0.10.0": "v1.5.0", "v0.11.0": "v1.5.0"}
    assert release.crds.version == crds_by_picker[picker.image.tag]
    assert "latest" not in {release.vllm.image.tag, release.proxy.image.tag}


@by_release
def test_routing_decisions_are_read_from_the_undeprecated_metric_of_each_release(release: catalogue.Release):
    prefix = "llm_d_epp" if release.order >= 9 else "llm_d_inference_scheduler"
    expected = f"{prefix}_disagg_decision_total"
    assert release.endpoint_picker.dialect.metrics.decisions == expected


def test_releases_with_a_picker_image_of_a_deleted_repository_are_marked_as_gone():
    gone = {release.name for release in RELEASES if release.images_gone}
    assert gone == {r.name for r in RELEASES if r.endpoint_picker.image.repository == "llm-d/llm-d-inference-scheduler"}


def test_an_override_changes_only_the_parts_of_a_release_that_it_names():
    base, router = known_release("llm-d-0.9.0"), known_release("llm-d-0.6.0")
    changed = with_override(base, catalogue.Override(router="llm-d-0.6.0", quick_reduce="INT4"))
    assert (changed.endpoint_picker, changed.routing_sidecar) == (router.endpoint_picker, router.routing_sidecar)
    assert (changed.vllm.image, changed.crds, changed.name) == (base.vllm.image, base.crds, base.name)
    assert changed.vllm.quick_reduce == "INT4"
    assert with_override(base, catalogue.Override()) == base


@by_release
def test_no_release_sets_flags_at_which_pickers_exit_quick_reduce_or_aiter_folders(release: catalogue.Release):
    text = (values_folder() / "releases" / f"{release.name}.yaml").read_text()
    for flag in ("queued-requests-metric", "running-requests-metric", "cache-usage-percentage-metric", "-info-metric"):
        assert flag not in text
    assert not [name for name in release.vllm.environment if "QUICK_REDUCE" in name or name == "AITER_JIT_DIR"]


@by_release
def test_kv_cache_is_handed_over_by_nixl_with_roles_and_flags_and_plain_http(release: catalogue.Release):
    connectors, arguments = release.vllm.kv_connector, release.routing_sidecar.arguments
    assert connectors.hand_over["nixl"].sidecar_arguments == ("--kv-connector=nixlv2",)
    assert "--secure-proxy=false" in arguments
    assert not any(argument.startswith("--connector") for argument in arguments)
    assert set(connectors.roles) == HANDING_OVER
    assert {"--kv-transfer-config", "--kv-offloading-size", connectors.offload_flag} <= set(connectors.flags)


@by_release
def test_envoy_in_router_pods_logs_warnings_only_and_has_a_limit_of_threads(release: catalogue.Release):
    arguments = list(release.proxy.arguments)
    assert arguments[arguments.index("--log-level") + 1] == "warn"
    assert int(arguments[arguments.index("--concurrency") + 1]) >= 1
    assert "--cpuset-threads" not in arguments


@by_release
def test_attention_backend_and_block_size_of_releases_are_those_of_amds_overlays(release: catalogue.Release):
    """The backend for KV connectors is not one that refuses them."""
    backend = release.vllm.attention_backend
    assert backend.default == "ROCM_AITER_UNIFIED_ATTN"
    assert release.vllm.environment["VLLM_ROCM_USE_AITER"] == "1"
    assert backend.kv_connector not in backend.refused_with_kv_connector
    assert release.vllm.block_size.kv_connector == 128


def numbers(version: str) -> tuple[int, ...]:
    """A version such as v0.26.0 by its numbers; empty for another text."""
    return tuple(int(part) for part in re.findall(r"\d+", version)) if version.startswith("v") else ()


def left_open(release: catalogue.Release) -> list[str]:
    """Return what the file of a release must decide, as later versions of its parts are known to differ."""
    vllm, picker = release.vllm, release.endpoint_picker
    found: list[str] = []
    built = numbers(vllm.image.tag) if vllm.image.repository == "vllm/vllm-openai-rocm" else ()
    if built > (0, 26, 0) and "ROCPROFILER_QUEUE_INTERPOSITION" not in vllm.environment:
        # images set 0, with which workers segfault
        found.append("ROCPROFILER_QUEUE_INTERPOSITION: https://github.com/vllm-project/vllm/issues/56521")
    if built >= (0, 26, 0) and "kv_both" in vllm.kv_connector.roles.values():
        found.append("kv_role: https://github.com/vllm-project/vllm/issues/43807")
    if numbers(picker.program.version) >= (0, 11, 0):  # it ends on plug-ins that it doesn't know
        handlers = [name for name, plugin in picker.dialect.plugins.items() if plugin.kind == "headers"]
        found += [f"{name}: https://github.com/llm-d/llm-d-router/pull/2815" for name in handlers]
    return found


@by_release
def test_every_release_entry_states_all_known_changes_of_its_vllm_and_picker(release: catalogue.Release):
    assert left_open(release) == []


def test_a_release_entry_with_newer_vllm_and_picker_must_state_their_known_changes():
    newest = default_release()
    image = newest.vllm.image.model_copy(update={"tag": "v0.30.0"})
    program = newest.endpoint_picker.program.model_copy(update={"version": "v0.11.0"})
    picker = type("Later", (), {"program": program, "dialect": newest.endpoint_picker.dialect})
    both = newest.vllm.kv_connector.model_copy(update={"roles": dict.fromkeys(HANDING_OVER, "kv_both")})
    vllm = newest.vllm.model_copy(update={"image": image, "kv_connector": both})
    later = newest.model_copy(update={"vllm": vllm, "endpoint_picker": picker})
    names = [text.partition(":")[0] for text in left_open(later)]
    assert names == ["ROCPROFILER_QUEUE_INTERPOSITION", "kv_role", "disagg-headers-handler"]


@by_release
def test_vllms_cache_folders_are_inside_scratch_folders_of_the_container(release: catalogue.Release):
    for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"):
        folder = release.vllm.environment[name]
        assert any(folder == root or folder.startswith(f"{root}/") for root in release.vllm.scratch_folders)


@by_release
def test_each_release_has_crds_of_inference_pools_model_rewrites_and_objectives(release: catalogue.Release):
    assert [name.rsplit("_", 1)[1] for name in sorted(release.crds.files)] == [
        "inferencepools.yaml",
        "inferencemodelrewrites.yaml",
        "inferenceobjectives.yaml",
    ]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in release.crds.files.values())


@by_release
def test_crd_digests_are_those_of_the_files_in_the_go_module(release: catalogue.Release):
    go_path = Path(os.environ.get("GOPATH", Path.home() / "go"))
    folder = go_path / "pkg" / "mod" / f"{release.crds.module}@{release.crds.version}" / release.crds.folder
    if not folder.is_dir():
        pytest.skip(f"the Go module cache has no {release.crds.module} {release.crds.version}")
    result = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in release.crds.files}
    assert result == release.crds.files


TEXT = "kind: CustomResourceDefinition\nmetadata: {name: a}\n"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server():
    """Files by path that are served on loopback, and their address."""
    files = {}

    def answer(request: HttpRequest) -> HttpAnswer:
        text = files.get(request.url.path)
        return HttpAnswer(404, {}) if text is None else HttpAnswer(200, text.encode())

    with http_server(answer) as served:
        yield files, address_of(served)


def crds(repository="http://127.0.0.1:1"):
    files = {"a.yaml": hashlib.sha256(TEXT.encode()).hexdigest()}
    return CrdFiles(module="example.org/m", version="v1", repository=repository, folder="crd", files=files)


def test_crds_of_the_go_module_cache_are_read_and_refused_with_another_digest(folder):
    file = folder / "modules" / "example.org/m@v1" / "crd" / "a.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(TEXT)
    assert crd_manifests(crds())[0]["metadata"]["name"] == "a"
    file.write_text(TEXT + "# changed\n")
    with pytest.raises(KitError, match="SHA-256"):
        crd_manifests(crds())


def test_crds_of_a_release_are_downloaded_once_and_then_cached(folder, server):
    files, address = server
    files["/v1/crd/a.yaml"] = TEXT
    assert crd_manifests(crds(address))
    files.clear()
    assert crd_manifests(crds(address))
    assert [path.name for path in (folder / "crds").rglob("*") if path.is_file()] == ["a.yaml"]


def test_the_error_for_an_unavailable_crd_file_says_where_to_put_the_file(folder, server):
    with pytest.raises(KitError, match="404") as error:
        crd_manifests(crds(server[1]))
    assert str(folder / "crds" / "v1" / "a.yaml") in error.value.remedy


def test_environment_variables_set_the_folder_in_which_downloaded_crds_are_cached(monkeypatch, tmp_path):
    monkeypatch.delenv("LLMD_OKE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert values.cache_folder() == tmp_path / "llmd-oke"
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "own"))
    assert values.cache_folder() == tmp_path / "own"


def test_the_docs_give_the_number_of_prefill_retries_in_the_sidecars_flags():
    release = default_release()
    (retries,) = [int(word.partition("=")[2]) for word in release.routing_sidecar.arguments if "max-retries" in word]
    times = {1: "once", 2: "twice", 3: "three times", 4: "four times"}[retries]
    (limit,) = [limit.text for limit in release.endpoint_picker.dialect.limits if "is retried" in limit.text]
    assert f"the request is retried {times}, 200 ms apart, at that same server" in limit
    assert limit.endswith("and then fails for the client")
    docs = PAGE.parent
    rows = [line for line in (docs / "parity.md").read_text().splitlines() if "--prefill-max-retries" in line]
    assert rows
    for row in rows:
        assert f"| {retries} |" in row
        assert "at the same server" in row
        assert "one that is gone stays the client's error" in row
    assert limit in PAGE.read_text()


PAGE = Path(__file__).parents[3] / "docs" / "releases.md"


def test_the_releases_page_equals_what_is_generated_from_the_catalogue():
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes it anew."""
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


def test_each_known_limit_of_a_release_has_a_source():
    address = re.compile(r"https://[^\s,]+")
    sources = [limit.source for release in all_releases() for limit in limits(release)]
    assert [source for source in sources if not address.fullmatch(source)] == []


def all_releases() -> list[Release]:
    """All releases, the newest first."""
    return sorted(RELEASES, key=lambda release: -release.order)


def limits(release: Release) -> tuple[KnownLimit, ...]:
    return (*release.endpoint_picker.dialect.limits, *release.vllm.limits)


def limits_of_settings(release: Release) -> Iterator[tuple[str, KnownLimit]]:
    """Limits that count for some stacks alone, each with the words for which."""
    for name, way in release.vllm.kv_connector.hand_over.items():
        yield from ((f"with `kvCache.connector: {name}`, ", limit) for limit in way.limits)
    if release.vllm.over_nodes is not None:
        yield from (("of servers over nodes: ", limit) for limit in release.vllm.over_nodes.limits)
    if release.disaggregated_sets is not None:
        yield from (("with `disaggregatedSet: true`, ", limit) for limit in release.disaggregated_sets.limits)


def page() -> str:
    """The page of the docs."""
    names = [release.name for release in all_releases()]
    lines = [
        "# Releases of llm-d",
        "",
        "What the kit deploys of each: versions that llm-d released together, and what they are known not to do. A",
        "stack file names one (`release`); anything else is an `override`. Made from `values/releases` and",
        "`values/endpoint-pickers`.",
        "",
        "The update from llm-d-0.9.0 to llm-d-0.10.0 is rehearsed (`tests/rehearsal/end_to_end/test_rollouts.py`),",
        "with another endpoint picker and sidecar than v0.11.0, which can't be had ([versions](compatibility.md)).",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    columns = [dict(rows(release)) for release in all_releases()]
    lines += [f"| {row} | {' | '.join(column[row] for column in columns)} |" for row in columns[0]]
    for release in all_releases():
        lines += ["", f"## Known limits of {release.name}", ""]
        found = [*(("", limit) for limit in limits(release)), *limits_of_settings(release)]
        lines += [f"- {where}{limit.text} ([source]({limit.source}))" for where, limit in found] or ["None is known."]
    return "\n".join([*lines, ""])


def rows(release: Release) -> Iterator[tuple[str, str]]:
    picker, vllm, backend = release.endpoint_picker, release.vllm, release.vllm.attention_backend
    yield "source", f"[llm-d]({release.source})"
    gone = "; ".join(f"`{image}`: {why.strip()}" for image, why in release.images_gone.items())
    yield "can be pulled", f"no. {gone}" if gone else "yes"
    for what, image in (
        ("endpoint picker", picker.image),
        ("routing sidecar", release.routing_sidecar.image),
        ("Envoy", release.proxy.image),
        ("vLLM", vllm.image),
    ):
        yield what, f"`{image.reference}`{'' if image.digest else ' (tag alone)'}"
    yield "definitions", f"Gateway API Inference Extension {release.crds.version}"
    yield "chart that objects are held to", release.router.chart
    yield "endpoint pickers of a router", str(release.router.replicas)
    yield "router profiles", ", ".join(picker.dialect.profiles)
    yield "APIs that are prefilled remotely", ", ".join(picker.dialect.disaggregating_apis)
    yield "attention backend", f"{backend.default}; with a KV connector {backend.kv_connector}; latent {backend.latent}"
    yield "backends for mixed TP", ", ".join(backend.split_by_heads) or "none"
    sizes = vllm.block_size
    preferred = "".join(f"; {size} with {name}" for name, size in sizes.preferred.items())
    yield "block size", f"{sizes.default}{preferred}; with a KV connector {sizes.kv_connector}"
    yield "`kv_role`", ", ".join(f"{role} {name}" for role, name in vllm.kv_connector.roles.items())
    sidecar = release.routing_sidecar.tracing_arguments is not None
    senders = {"endpoint picker": release.router.traces, "routing sidecar": sidecar, "vLLM": vllm.traces}
    yield "known to send traces", ", ".join(name for name, sends in senders.items() if sends) or "none"
    yield (
        "clients can't name a prefill server",
        "by the sidecar too" if release.routing_sidecar.ssrf_protection else "by Envoy",
    )
