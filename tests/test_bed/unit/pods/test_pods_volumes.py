from pathlib import Path
from typing import Any, cast

import pytest
from lightkube.models.core_v1 import Container, Volume
from llmd_rehearsal.pods import volumes
from llmd_rehearsal.pods.environment import MissingConfigError
from llmd_rehearsal.pods.pod_sandbox import container_mounts
from llmd_rehearsal.pods.volumes import File, TokenRequest, VolumeSources, write_files
from pods_for_tests import FACTS, FixedSources, make_pod

WISH = TokenRequest(None, 3607)
CONTENTS = VolumeSources(
    FACTS,
    FixedSources({"settings": {"a": b"1", "b": b"2"}, "kube-root-ca.crt": {"ca.crt": b"CA"}}, {"keys": {"k": b"\x00"}}),
    {WISH: "token"},
)
ACCESS: dict[str, Any] = {
    "name": "kube-api-access-x",
    "projected": {
        "defaultMode": 0o600,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ],
    },
}


def files(body: dict[str, Any]) -> dict[str, File]:
    return volumes.files(cast("Volume", Volume.from_dict({"name": "v", **body})), make_pod(), CONTENTS)


ITEMS = [{"key": "b", "path": "x/y", "mode": 0o400}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param({"configMap": {"name": "settings"}}, {"a": File(b"1"), "b": File(b"2")}, id="all keys"),
        pytest.param({"configMap": {"name": "settings", "items": ITEMS}}, {"x/y": File(b"2", 0o400)}, id="items"),
        pytest.param({"secret": {"secretName": "keys", "defaultMode": 0o400}}, {"k": File(b"\x00", 0o400)}, id="bytes"),
    ],
)
def test_configmap_and_secret_volumes_have_the_chosen_keys_as_files(source: Any, expected: dict[str, File]) -> None:
    assert files(source) == expected


def test_the_service_account_volume_has_token_certificate_and_namespace() -> None:
    assert volumes.token_requests(make_pod(volumes=[ACCESS])) == {WISH}
    contents = {"token": b"token", "ca.crt": b"CA", "namespace": b"serving"}
    assert files(ACCESS) == {name: File(content, 0o600) for name, content in contents.items()}


def test_a_pod_gets_the_files_of_all_its_volumes() -> None:
    settings, keys = {"configMap": {"name": "settings"}}, {"secret": {"secretName": "keys"}}
    both = {"sources": [{"configMap": {"name": "more"}}, {"secret": {"name": "other-keys"}}]}
    pod = make_pod(volumes=[{"name": str(i), **body} for i, body in enumerate([settings, keys, {"projected": both}])])
    assert volumes.source_names(pod) == {"settings", "keys", "more", "other-keys"}


@pytest.mark.parametrize(
    "source",
    [
        {"configMap": {"name": "none"}},
        {"secret": {"secretName": "none"}},
        {"configMap": {"name": "settings", "items": [{"key": "z", "path": "z"}]}},
    ],
)
def test_a_missing_configmap_or_secret_of_a_volume_is_an_error(source: dict[str, Any]) -> None:
    with pytest.raises(MissingConfigError):
        files(source)


@pytest.mark.parametrize(
    "source",
    [
        {"configMap": {"name": "none", "optional": True}},
        {"configMap": {"name": "settings", "optional": True, "items": [{"key": "z", "path": "z"}]}},
        {"projected": {"sources": [{"secret": {"name": "none", "optional": True}}]}},
    ],
)
def test_a_missing_optional_configmap_or_secret_is_an_empty_volume(source: dict[str, Any]) -> None:
    assert files(source) == {}


def folder(body: dict[str, Any]) -> Path:
    volume = cast("Volume", Volume.from_dict({"name": "v", **body}))
    return volumes.folder(volume, make_pod(), Path("/state/pods/uid"), Path("/state"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"emptyDir": {"medium": "Memory"}}, "/state/pods/uid/volumes/v"),
        ({"persistentVolumeClaim": {"claimName": "weights"}}, "/state/volumes/serving/weights"),
        ({"hostPath": {"path": "/dev/kfd"}}, "/state/nodes/gpu-2/host/dev/kfd"),
    ],
)
def test_a_volumes_folder_is_always_inside_the_rehearsals_state_folder(source: dict[str, Any], expected: str) -> None:
    assert folder(source) == Path(expected)


def test_an_unknown_kind_of_volume_is_refused() -> None:
    with pytest.raises(MissingConfigError, match="no volumes of this kind"):
        folder({"nfs": {"server": "s", "path": "/"}})


def test_an_updated_configmap_replaces_all_files_of_its_volumes_folder(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1"), "sub/b": File(b"2", 0o600)})
    write_files(tmp_path, {"a": File(b"new"), "c": File(b"3")})
    assert (tmp_path / "a").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("..")) == ["a", "c"]
    assert len(list(tmp_path.glob("..*"))) == 2  # the link and the one generation that it leads to


def test_file_modes_of_volumes_are_kept(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1", 0o640)})
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_configmap_mounts_are_read_only_and_missing_sub_path_folders_are_created(tmp_path: Path) -> None:
    mounts = [
        {"name": "config", "mountPath": "/etc/app/app.yaml", "subPath": "app.yaml"},
        {"name": "work", "mountPath": "/work", "subPathExpr": "$(POD)/x"},
    ]
    container = cast("Container", Container.from_dict({"name": "c", "volumeMounts": mounts}))
    (tmp_path / "config").mkdir()
    folders = {"config": tmp_path / "config", "work": tmp_path / "work"}
    config, work = container_mounts(container, folders, frozenset({"config"}), {"POD": "p0"})
    assert (config.source, config.read_only) == (tmp_path / "config" / "app.yaml", True)
    assert (work.source, work.read_only) == (tmp_path / "work" / "p0" / "x", False)
    assert work.source.is_dir()


def test_a_configmap_volume_gets_a_folder_as_mount_point_of_a_volume_inside_it(tmp_path: Path) -> None:
    """The kubelet makes it, as a volume of API files is read-only in the container."""
    mounts = [{"name": "more", "mountPath": "/etc/app/more.d/"}, {"name": "config", "mountPath": "/etc/app"}]
    container = cast("Container", Container.from_dict({"name": "c", "volumeMounts": mounts}))
    folders = {name: tmp_path / name for name in ("config", "more")}
    write_files(folders["config"], {"app.yaml": File(b"1")})
    folders["more"].mkdir()
    container_mounts(container, folders, frozenset({"config"}), {})
    assert (folders["config"] / "more.d").is_dir()
    write_files(folders["config"], {"other.yaml": File(b"2")})
    assert (folders["config"] / "more.d").is_dir()
