"""The project that a rehearsal's engine works in."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from llmd_base.errors import KitError
from llmd_oke import __version__, planning
from llmd_oke.config import stack_file, validate
from llmd_oke.planning.front_door_secrets import read_secrets
from llmd_oke.values import read_yaml
from llmd_rehearsal.engine_project import PREVIEWED, checkpoint_file, copy_project, install_package, runtime
from llmd_rehearsal.front_door import front_door_secrets, rehearsed_front_door
from llmd_rehearsal.inventory import language_programs
from llmd_rehearsal.model_sources import source_hosts
from llmd_rehearsal.real_vllm.topologies import CutStack, cut
from llmd_rehearsal.source_credentials import ValidCredentials, valid_credentials_file
from project_entries import model_entry, write_entry
from stack_files import model, stack


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "stacks").mkdir(parents=True)
    (folder / "Pulumi.yaml").write_text("name: mine")
    (folder / "__main__.py").touch()
    stack_file(folder, "s").write_text("config: {llmd-oke:stack: {release: llm-d-0.7.0}}")
    return folder


def write_config(project: Path, document: object, **own: object) -> None:
    """Write the stack file of stack `s`, with these further config values."""
    stack_file(project, "s").write_text(yaml.safe_dump({"config": {"llmd-oke:stack": document, **own}}))


def copied_config(project: Path, state: Path, release: str = "llm-d-0.9.0", cut: CutStack | None = None) -> Any:
    """Return the config values of stack `s` in the copy that a rehearsal makes of the project."""
    copy = copy_project(project, "s", state, release, cut=cut)
    return read_yaml(stack_file(copy.folder, "s"))["config"]


def test_a_preview_uses_a_copy_of_the_project_with_the_encryption_salt_of_the_state(project: Path, tmp_path: Path):
    deployed = stack_file(copy_project(project, "s", tmp_path / "state", "llm-d-0.6.0").folder, "s")
    deployed.write_text(f"encryptionsalt: v1:salt\n{deployed.read_text()}")
    before = deployed.read_text()
    previewed = copy_project(project, "s", tmp_path / "state", "llm-d-0.6.0", PREVIEWED)
    written = read_yaml(stack_file(previewed.folder, "s"))
    assert written["encryptionsalt"] == "v1:salt"
    stack = written["config"]["llmd-oke:stack"]
    assert written["config"]["llmd-oke:rehearsed"] is True
    assert stack == {"release": "llm-d-0.7.0", "override": {"router": "llm-d-0.6.0"}}
    assert written["config"]["llmd-oke:rehearsedRouter"] == "llm-d-0.6.0"
    assert deployed.read_text() == before


def test_a_stack_cut_for_vllm_itself_is_deployed_as_one_with_random_weights(project: Path, tmp_path: Path):
    document = stack(model("2p-tp1-1d-tp1"), release="llm-d-0.9.0")
    write_config(project, document)
    fitting = cut(validate(document), 16, 2)
    whole, reduced = (copied_config(project, tmp_path / name, cut=of) for name, of in (("a", None), ("b", fitting)))
    assert ["llmd-oke:randomWeights" in config for config in (whole, reduced)] == [False, True]


def test_a_rehearsals_project_copy_keeps_plain_config_values_of_the_projects_program(project: Path, tmp_path: Path):
    own = {"mine:replicas": "2", "mine:token": {"secure": "v1:x"}, "oci:region": "us-ashburn-1"}
    write_config(project, {"release": "r"}, **own)
    config = copied_config(project, tmp_path / "state", "r")
    assert config["mine:replicas"] == "2"
    assert not {"mine:token", "oci:region", "llmd-oke:rehearsedRouter"} & config.keys()


def test_a_rehearsals_project_copy_merges_the_stack_file_with_its_base_file(project: Path, tmp_path: Path):
    stack_file(project, "s").write_text("config: {llmd-oke:stack: {base: shared.yaml, namespace: dev}}")
    (project / "stacks" / "shared.yaml").write_text("release: llm-d-0.6.0\nnamespace: shared\n")
    written = copied_config(project, tmp_path / "state", "llm-d-0.6.0")["llmd-oke:stack"]
    assert written == {"release": "llm-d-0.6.0", "namespace": "dev"}


def test_an_identity_provider_is_rehearsed_with_generated_keys():
    authentication = {"kind": "jwt", "issuer": "https://id.example.com", "audiences": ["llm"]}
    door = {"exposure": "public", "authentication": {**authentication, "jwksUri": "https://id.example.com/jwks.json"}}
    assert rehearsed_front_door({"frontDoor": door}) == {"frontDoor": {"authentication": authentication}}


def test_a_front_door_is_rehearsed_with_generated_secrets(project: Path, tmp_path: Path):
    door = {"exposure": "public", "host": "llm.example.com", "tls": {"kind": "issuer", "name": "x"}}
    enforced = {"engine": "existing"}
    front = stack(frontDoor={**door, "authentication": {"kind": "api-keys"}}, networkPolicies=enforced)
    write_config(project, front)
    config = copied_config(project, tmp_path / "state")
    plan = planning.plan(validate(config["llmd-oke:stack"])).front_door
    assert plan is not None
    assert plan.exposure == "cluster"
    texts = {key.partition(":")[2]: json.dumps(value) for key, value in config.items()}
    secrets = read_secrets(plan, texts)
    assert secrets.certificate is not None
    assert set(secrets.keys or ()) == {"rehearsal"}
    assert copied_config(project, tmp_path / "state") == config


def test_pulumi_writes_no_log_files_in_a_rehearsal(project: Path, tmp_path: Path):
    copy = copy_project(project, "s", tmp_path / "state", "llm-d-0.6.0")
    with pytest.raises(FileExistsError):
        (copy.pulumi_home / "logs").mkdir(parents=True)


def test_a_rehearsals_project_copy_has_only_the_projects_current_catalogue_entries(project: Path, tmp_path: Path):
    first = write_entry(project, "models/first", model_entry("first"))
    write_entry(project, "latency/MI300X/second", "model: second")
    (project / "values" / "link.yaml").symlink_to("/etc/hostname")
    (project / "values" / "notes.txt").touch()
    copy = copy_project(project, "s", tmp_path / "state", "llm-d-0.6.0").folder / "values"
    copied = {str(file.relative_to(copy)) for file in copy.rglob("*.*")}
    assert copied == {"models/first.yaml", "latency/MI300X/second.yaml"}
    first.unlink()
    copy_project(project, "s", tmp_path / "state", "llm-d-0.6.0")
    assert not (copy / "models" / "first.yaml").exists()


def test_pulumis_state_is_stored_under_the_projects_name(project: Path, tmp_path: Path):
    state = tmp_path / "state"
    copy_project(project, "s", state, "llm-d-0.6.0")
    assert checkpoint_file(state, "s") == state / "backend/.pulumi/stacks/mine/s.json"


def test_a_pulumi_program_in_another_language_is_copied_with_a_link_to_its_packages(project: Path, tmp_path: Path):
    packages = {"llmd-oke": "../../components", "random": "random"}
    text = yaml.safe_dump({"name": "chat", "runtime": {"name": "nodejs"}, "packages": packages})
    (project / "Pulumi.yaml").write_text(text)
    (project / "__main__.py").unlink()
    (project / "index.ts").write_text("export {};")
    (project / "node_modules").mkdir()
    (project / ".rehearsal").mkdir()
    copy = copy_project(project, "s", project / ".rehearsal" / "s", "llm-d-0.7.0").folder
    assert sorted(path.name for path in copy.iterdir()) == ["Pulumi.yaml", "index.ts", "node_modules", "stacks"]
    assert (copy / "node_modules").resolve() == project / "node_modules"
    assert read_yaml(copy / "Pulumi.yaml")["packages"] == {"random": "random"}
    assert (runtime(project), runtime(copy)) == ("nodejs", "nodejs")


def test_installing_the_component_package_writes_a_plug_in_that_starts_this_python(tmp_path: Path):
    install_package(tmp_path)
    (program,) = tmp_path.glob("plugins/resource-llmd-oke-v*/pulumi-resource-llmd-oke")
    assert program.parent.name == f"resource-llmd-oke-v{__version__}"
    assert os.access(program, os.X_OK)
    assert sys.executable in program.read_text()


def test_a_pulumi_program_in_go_is_refused_with_the_runtimes_that_rehearsals_support(tmp_path: Path):
    with pytest.raises(KitError, match="runtime 'go'") as refused:
        language_programs(tmp_path, "go")
    assert refused.value.remedy == "Rehearsals run python, nodejs, yaml."
    assert language_programs(tmp_path, "python") == ()


def test_the_secret_with_a_front_doors_certificate_is_made_as_a_user_would(project: Path, tmp_path: Path):
    door = {"host": "llm.example.com", "tls": {"kind": "secret", "name": "own"}}
    front = stack(frontDoor={**door, "exposure": "internal"}, networkPolicies={"engine": "existing"})
    write_config(project, front)
    state = tmp_path / "state"
    config = copied_config(project, state)
    assert config["llmd-oke:stack"]["frontDoor"] == door
    assert "llmd-oke:frontDoorCertificate" not in config
    (secret,) = front_door_secrets(planning.plan(validate(front)), state)
    assert (secret.name, secret.namespaces, secret.type) == ("own", ("llm-d",), "kubernetes.io/tls")
    pair = {key: file.read_text() for key, file in secret.files.items()}
    certificate = x509.load_pem_x509_certificate(pair["tls.crt"].encode())
    assert load_pem_private_key(pair["tls.key"].encode(), None).public_key() == certificate.public_key()


IMPORTED = {"import": {"name": "any", "checksum": "md5:" + "a" * 32}}
PUBLIC = {"import": {**IMPORTED["import"], "uri": "https://objects.example.com/image"}}


def test_credentials_of_model_sources_are_made_for_a_rehearsal_and_stay(project: Path, tmp_path: Path):
    pools = [{"name": "gpus", "image": IMPORTED}, {"name": "public", "image": PUBLIC}, {"name": "plain"}]
    document = {"release": "r", "gpuPools": pools, "systemPool": {"image": IMPORTED}}
    secure = {"llmd-oke:huggingFaceToken": {"secure": "v1:x"}}

    def written(**given: Any) -> dict[str, Any]:
        write_config(project, document, **given)
        return copied_config(project, tmp_path / "state", "r")

    without, config = written(), written(**secure)
    assert "llmd-oke:huggingFaceToken" not in without
    assert config.keys() - without.keys() == secure.keys()
    assert config["llmd-oke:imageLinks"].keys() == {"gpus", "system"}
    valid = ValidCredentials.model_validate_json(valid_credentials_file(tmp_path / "state").read_bytes())
    assert valid.tokens == (config["llmd-oke:huggingFaceToken"],)
    assert config["llmd-oke:modelSourceUrl"] == source_hosts().link(*valid.requests)
    assert written(**secure) == config
