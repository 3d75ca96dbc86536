"""Private registries in the stack file: what they may be called, what goes into them, and what is said without one."""

import json
import shlex

import pytest
import yaml
from created_stacks import validated
from llmd_base.errors import InvalidStack
from llmd_oke import planning
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.planning.container_images import Copy, copies, images_of, pulled_images
from llmd_oke.planning.copy_lists import CopyForm, as_copy, copy_text
from stack_files import StackObject, created_pool, created_stack, model, paths, plan

AGGREGATED: StackObject = model("agg-tp1-8r")

PREFIX = "iad.ocir.io/ai/mirror"
MIRROR = MirrorRegistry(PREFIX)
BUSYBOX = ContainerImage(registry="docker.io", repository="library/busybox", tag="1.36", digest="sha256:" + "1" * 64)


def created(**changes: object) -> planning.Plan:
    return planning.plan(validated(stack_changes={"monitoring": "install", **changes}))


def advice(of: planning.Plan, path: str) -> list[str]:
    return [item.text for item in of.advice if item.path == path]


PREFIXES = [
    *(
        "https://iad.ocir.io/ai",
        "iad.ocir.io/ai/",
        "iad.ocir.io/AI",
        "iad.ocir.io/ai:v1",
        "mirror",
        "iad.ocir.io/../ai",
    ),
    *("iad.ocir.io/ai mirror", "user:secret@iad.ocir.io/ai", "iad.ocir.io/" + "a" * 200, ""),
    f"iad.ocir.io/ai@sha256:{'0' * 64}",
]


@pytest.mark.parametrize(
    ("mirror", "path"),
    [
        *(({"prefix": prefix}, "registryMirror.prefix") for prefix in PREFIXES),
        ({}, "registryMirror.prefix"),
        ({"prefix": PREFIX, "pullSecret": "Not A Name"}, "registryMirror.pullSecret"),
        ({"prefix": PREFIX, "pullSecret": ""}, "registryMirror.pullSecret"),
        ({"prefix": PREFIX, "secret": "x"}, "registryMirror.secret"),
        (PREFIX, "registryMirror"),
    ],
)
def test_invalid_registrymirror_settings_are_refused_with_their_path(mirror: object, path: str):
    assert paths(AGGREGATED, nodes=1, registryMirror=mirror) == [path]


@pytest.mark.parametrize(
    "prefix", [PREFIX, "registry.example.com", "registry.example.com:5000/a", "localhost:5000/a_b"]
)
def test_registries_with_and_without_path_or_port_are_accepted(prefix: str):
    assert paths(AGGREGATED, nodes=1, registryMirror={"prefix": prefix}) == []


def test_a_mirrored_images_name_has_its_original_registry_and_its_digest_is_kept():
    for registry, part in (("docker.io", "docker.io"), ("quay.io", "quay.io"), ("localhost:5000", "localhost-5000")):
        copy = MIRROR.copy_of(BUSYBOX.model_copy(update={"registry": registry}))
        assert copy.reference == f"{PREFIX}/{part}/library/busybox:1.36"
        assert (MIRROR.copy_of(copy), copy.digest) == (copy, BUSYBOX.digest)


def test_a_registry_mirror_adds_its_pull_secret_once_and_keeps_unknown_values():
    unknown = object()
    pod = {"containers": [{"image": "docker.io/library/busybox:1.36"}], "volumes": unknown}
    pod["imagePullSecrets"] = [{"name": "own"}]
    mirrored = MirrorRegistry(PREFIX, "ocir").in_manifest({"spec": pod})["spec"]
    assert mirrored["imagePullSecrets"] == [{"name": "own"}, {"name": "ocir"}]
    assert mirrored["volumes"] is unknown
    assert MirrorRegistry(PREFIX, "ocir").in_manifest(mirrored) == mirrored


def test_nodes_pull_mirrored_images_with_the_originals_digests():
    of = created(registryMirror={"prefix": PREFIX})
    assert [used.image.digest for used in pulled_images(of)] == [used.image.digest for used in images_of(of)]
    assert {used.image.registry for used in pulled_images(of)} == {"iad.ocir.io"}
    assert "iad.ocir.io" not in {used.image.registry for used in images_of(of)}


def test_a_release_whose_images_were_deleted_can_be_deployed_from_a_registry_mirror():
    old = created_stack(release="llm-d-0.6.0", models=[model("2p-tp1-2d-tp1")])
    mirrored = {**old, "registryMirror": {"prefix": PREFIX}}
    with pytest.raises(InvalidStack, match="nodes can't pull"):
        planning.plan_object(old, nodes_pull=True)
    assert not [item for item in planning.plan_object(mirrored, nodes_pull=True).advice if "can't pull" in item.text]


def test_image_copies_are_listed_with_digests_and_chart_archives_with_checksums():
    listed = [as_copy(copy) for copy in copies(created(), MIRROR)]
    assert {item["kind"] for item in listed} == {"image or chart", "chart archive"}
    archives = [item for item in listed if item["kind"] == "chart archive"]
    assert [len(item["sha256"]) for item in archives] == [64, 64]
    assert all(item["destination"].startswith(f"{PREFIX}/") for item in listed)
    assert json.loads(json.dumps(listed)) == listed


def test_the_crane_command_copies_an_image_by_digest_to_its_tag():
    line = copy_text([Copy(BUSYBOX, MIRROR.copy_of(BUSYBOX))], PREFIX, CopyForm.CRANE).splitlines()[1]
    assert shlex.split(line) == ["crane", "copy", BUSYBOX.pinned, f"{PREFIX}/docker.io/library/busybox:1.36"]


def test_commands_that_mirror_a_chart_archive_verify_its_checksum():
    archives = [copy for copy in copies(created(), MIRROR) if copy.archive]
    lines = copy_text(archives[:1], PREFIX, CopyForm.CRANE).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["set", "helm", "echo", "helm"]
    assert lines[2].endswith("| sha256sum --check -")
    assert (archives[0].archive.sha256 or "absent") in lines[2]


def test_images_to_mirror_are_written_as_a_skopeo_sync_file_with_the_command():
    text = copy_text(copies(created(), MIRROR), PREFIX, CopyForm.SKOPEO)
    listed = yaml.safe_load(text)
    assert listed["docker.io"]["images"]["library/busybox"] == ["1.36"]
    assert text.startswith("# skopeo sync --all --preserve-digests --scoped --src yaml --dest docker FILE iad.ocir.io")
    assert "# helm push" in text


def test_check_reports_which_pods_of_oke_and_gateways_ignore_the_registry_mirror():
    mirror = {"prefix": PREFIX}
    assert len(advice(created(registryMirror=mirror), "registryMirror")) == 1
    assert not advice(plan(AGGREGATED, nodes=1, registryMirror=mirror), "registryMirror")
    behind = model("agg-tp1-8r", router={"mode": "gateway"})
    own = {"mode": "create", "provider": "istio"}
    (text,) = advice(plan(behind, nodes=1, gateway=own, registryMirror=mirror), "registryMirror")
    assert text == "pods of the Gateway run the image that istio is installed with"


def test_check_warns_of_docker_hubs_limit_for_many_nodes_without_a_private_registry():
    (text,) = advice(created(gpuPools=[created_pool(size=40)]), "registryMirror")
    assert "from docker.io, at most " in text
    two_images = model("agg-tp1-8r", router={"mode": "none"})  # of vLLM and of the Job that pulls it
    assert not advice(plan(two_images, nodes=50), "registryMirror")
    assert advice(plan(two_images, nodes=51), "registryMirror")


@pytest.mark.parametrize(
    ("mirror", "grants", "told"),
    [
        ({"prefix": PREFIX}, [], True),
        ({"prefix": PREFIX}, ["ocir"], False),
        ({"prefix": PREFIX, "pullSecret": "ocir"}, [], False),
        ({"prefix": "harbor.example.com/mirror"}, [], False),
    ],
)
def test_check_warns_of_nodes_without_permission_to_pull_from_ocis_registry(
    mirror: dict[str, str], grants: list[str], told: bool
):
    config = created_stack(registryMirror=mirror, cluster={"iam": {"grants": grants}})
    assert bool(advice(planning.plan_object(config), "registryMirror.prefix")) is told
