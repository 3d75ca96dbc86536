"""The stand-in for a private registry of a rehearsed stack, and the account that its nodes sign in with."""

import json
from pathlib import Path

from llmd_rehearsal.private_registry import USER, docker_config, private_registry
from stack_files import plan

MIRROR = {"prefix": "iad.ocir.io/namespace/mirror", "pullSecret": "ocir"}


def test_a_stack_with_a_pull_secret_gets_a_registry_whose_account_stays(tmp_path: Path):
    made = private_registry(plan(registryMirror=MIRROR), tmp_path)
    assert made is not None
    (secret,) = made.secrets
    assert (secret.name, secret.type) == ("ocir", "kubernetes.io/dockerconfigjson")
    assert secret.namespaces == ("llm-d", "llmd-oke-acceptance")
    (password,) = json.loads((tmp_path / "registry" / "accounts.json").read_text())[USER]
    content = secret.files[".dockerconfigjson"].read_text()
    assert content == docker_config("iad.ocir.io", password)
    private_registry(plan(registryMirror=MIRROR), tmp_path)
    assert secret.files[".dockerconfigjson"].read_text() == content


def test_a_stack_whose_nodes_sign_in_themselves_gets_no_registry(tmp_path: Path):
    assert private_registry(plan(registryMirror={"prefix": MIRROR["prefix"]}), tmp_path) is None
    assert private_registry(plan(), tmp_path) is None
