import base64
import hashlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from llmd_base.errors import KitError
from llmd_oke.catalogue.cluster import cloud_init
from llmd_oke.cluster import instance_metadata
from llmd_oke.cluster.instance_metadata import (
    Boot,
    SelfManaged,
    kubelet_arguments,
    metadata,
    self_managed,
    user_data,
    without_comments,
)

GPU = Boot(
    kind="gpu",
    kubernetes_version="v1.34.2",
    taints=["amd.com/gpu=present:NoSchedule", "team=a:NoExecute"],
    nvme="raid-10",
    huge_pages_gib=64,
    rdma_in_pods=True,
)
CPU = Boot(kind="cpu", kubernetes_version="v1.33.1")
VARIANTS = [
    GPU,
    CPU,
    Boot("gpu", "v1.34.2", self_managed=True, file_storage=True),
    Boot("gpu", "v1.30.1", max_pods=64, nvme="raid-0"),
]

STEP = re.compile(r"^step ([a-z-]+) <<'LLMD_OKE_END_OF_STEP'\n(.*?)^LLMD_OKE_END_OF_STEP$", re.MULTILINE | re.DOTALL)


def steps(text: str) -> dict[str, str]:
    return dict(STEP.findall(text))


@pytest.mark.parametrize("boot", VARIANTS)
def test_every_boot_script_is_bash(boot: Boot):
    checked = subprocess.run(["bash", "-n"], input=user_data(boot), capture_output=True, text=True, check=False)
    assert checked.stderr == ""


def parsed_by_bash(scripts: dict[str, str]) -> str:
    """The scripts as Bash itself writes what it has read of them."""
    functions = "\n".join(f"{name}() {{\n{script}\n}}" for name, script in scripts.items())
    return subprocess.run(
        ["bash", "-c", f"{functions}\ndeclare -f"], capture_output=True, text=True, check=True, timeout=10
    ).stdout


@pytest.mark.parametrize("boot", VARIANTS)
def test_bash_parses_the_same_script_with_and_without_comments(boot: Boot, monkeypatch: pytest.MonkeyPatch):
    kept = steps(user_data(boot))
    monkeypatch.setattr(instance_metadata, "without_comments", str)
    written = steps(user_data(boot))
    assert parsed_by_bash(kept) == parsed_by_bash(written)
    assert sum(map(len, kept.values())) < sum(map(len, written.values()))


@pytest.mark.parametrize("boot", VARIANTS)
def test_comments_and_indentation_of_boot_scripts_do_not_change_metadata(boot: Boot, monkeypatch: pytest.MonkeyPatch):
    before = metadata(boot)
    monkeypatch.setattr(instance_metadata, "_script", with_other_comments(instance_metadata._script))
    assert metadata(boot) == before


def with_other_comments(render: Callable[[str, Boot], str]) -> Callable[[str, Boot], str]:
    def reworded(name: str, boot: Boot) -> str:
        shebang, *lines = render(name, boot).splitlines()
        own = [line for line in lines if not line.startswith("#")]
        return "\n".join([shebang, '# it\'s "another" $(comment', *(f"    {line}" for line in own), "", "  # end", ""])

    return reworded


def test_an_additional_line_in_a_boot_script_changes_the_digest_in_metadata(monkeypatch: pytest.MonkeyPatch):
    before, render = metadata(CPU), instance_metadata._script
    monkeypatch.setattr(instance_metadata, "_script", lambda name, boot: render(name, boot) + "true\n")
    assert metadata(CPU)["llmd-oke-cloud-init"] != before["llmd-oke-cloud-init"]


@pytest.mark.parametrize(
    ("script", "meaning"),
    [
        ("a  b # c\n\n\n  d\n", "a b\nd\n"),
        ("a \\\n  b\n", "a b\n"),
        ("echo 'it  # stays' \"so  # too\"\n", "echo 'it  # stays' \"so  # too\"\n"),
        ("echo ${#list[@]} $# a#b\n", "echo ${#list[@]} $# a#b\n"),
        ('x="$(f "a  b"  c)" # d\n', 'x="$(f "a  b" c)"\n'),
        ('"  a $b  # c"  d\n', '"  a $b  # c" d\n'),
        ("a;# b\nc\n", "a;\nc\n"),
        ("(# b\na)\n", "(\na)\n"),
        ("#!/bin/bash\n# b\n\na\n", "#!/bin/bash\na\n"),
        ("# b\na\n", "a\n"),
    ],
)
def test_comments_of_boot_scripts_are_removed_and_quoted_text_is_kept(script: str, meaning: str):
    assert without_comments(script) == meaning


def test_conditions_of_a_boot_script_leave_nothing_in_commands_and_texts_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cloud-init").mkdir()
    template = (
        'run \\\n{% if file_storage %}\n  --a \\\n{% endif %}\n  "b\n  {% if file_storage %}\nc\n  {% endif %}\n"\n'
    )
    (tmp_path / "cloud-init" / "conditions.sh.j2").write_text(template)
    monkeypatch.setattr(instance_metadata, "values_folder", lambda: tmp_path)
    boot = Boot("cpu", "v1.34.2", file_storage=True)
    assert without_comments(instance_metadata._script("conditions", boot)) == 'run --a "b\nc\n"\n'


@pytest.mark.parametrize("boot", VARIANTS)
def test_boot_scripts_download_nothing_from_outside_and_have_no_placeholders(boot: Boot):
    text = user_data(boot)
    addresses = set(re.findall(r"https?://([^/\"\s]+)", text))
    assert addresses == {"169.254.169.254", *(urlsplit(uri).netloc for uri in cloud_init().packages.repositories)}
    assert ("{{" in text, "{%" in text) == (False, False)


@pytest.mark.parametrize("boot", VARIANTS)
def test_every_boot_script_exits_at_its_first_failure(boot: Boot):
    for script in (user_data(boot), *steps(user_data(boot)).values()):
        assert "set -euo pipefail" in script


def test_boot_scripts_combine_local_disks_into_the_configured_array():
    assert "level=10\n" in steps(user_data(GPU))["nvme-raid"]
    assert "level=0\n" in steps(user_data(Boot("gpu", "v1.34.2", nvme="raid-0")))["nvme-raid"]


def test_the_limit_of_pods_on_a_node_is_an_argument_of_the_kubelet():
    assert kubelet_arguments(Boot("gpu", "v1.34.2", max_pods=64)) == "--max-pods=64"


def test_kubelet_arguments_with_shell_characters_stay_single_arguments():
    boot = Boot("cpu", "v1.34.2", kubelet_arguments=["--x='; touch /tmp/llmd-oke-was-here; echo '"])
    line = re.search(r"^kubelet_extra_args=.*$", steps(user_data(boot))["join"], re.MULTILINE)
    assert line is not None
    shown = subprocess.run(
        ["bash", "-c", f'{line[0]}\nprintf %s "$kubelet_extra_args"'],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    assert shown.stdout == kubelet_arguments(boot)


def test_short_image_names_are_allowed_from_kubernetes_1_34_on():
    assert 'short_name_mode = "disabled"' in user_data(GPU)
    assert "short_name_mode" not in user_data(CPU)


def test_metadata_contains_the_digest_of_its_user_data():
    made = metadata(GPU, {"more": "1"})
    text = base64.b64decode(made["user_data"]).decode()
    assert text == user_data(GPU)
    assert made["llmd-oke-cloud-init"] == hashlib.sha256(text.encode()).hexdigest()
    assert made["more"] == "1"


def test_metadata_of_gpu_nodes_takes_less_than_half_of_ocis_limit():
    size = sum(len(key) + len(value) for key, value in metadata(GPU).items())
    assert size < cloud_init().metadata_limit_bytes / 2


def test_metadata_of_exactly_ocis_limit_is_accepted_and_one_more_byte_is_refused():
    key, size = "labels", sum(len(key) + len(value) for key, value in metadata(GPU).items())
    largest = "x" * (cloud_init().metadata_limit_bytes - size - len(key))
    assert metadata(GPU, {key: largest})[key] == largest
    with pytest.raises(KitError, match="OCI allows 32000"):
        metadata(GPU, {key: f"{largest}x"})


def test_self_managed_nodes_in_an_overlay_get_no_pod_subnets():
    node = SelfManaged("10.0.0.1", "Q0E=", "t", "v1.34.2", {}, 64)
    assert not [key for key in self_managed(node) if "pod" in key]
