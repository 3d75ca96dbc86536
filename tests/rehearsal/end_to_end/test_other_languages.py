"""The examples in TypeScript and YAML, by SDKs that Pulumi's CLI generates, deployed and benchmarked in a rehearsal.

`LLMD_OKE_NODE_MODULES` names a folder with the packages of `examples/typescript/package.json` but the kit's own,
which npm has installed: tests reach no registry.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from llmd_rehearsal.inventory import LANGUAGES
from llmd_rehearsal.program_definitions import program_definition
from llmd_rehearsal.programs import locate, why_unavailable
from user_project import ROOT, TIME_SCALE, Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

SDK = "@pulumi/llmd-oke"


def need_language(runtime: str) -> None:
    name = LANGUAGES[runtime]
    if locate(name) is None:
        reason = why_unavailable(name, program_definition(name).version)
        pytest.skip(f"no {name}: {reason or 'llmd-oke rehearse programs --languages fetches it'}")


def example(name: str, folder: Path) -> Project:
    shutil.copytree(ROOT / "examples" / name, folder, ignore=shutil.ignore_patterns("node_modules", "sdks"))
    return Project(folder)


def run(*words: str | Path, folder: Path, **variables: str) -> None:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `node_modules` with what npm has installed, and the SDK for TypeScript: generated, and compiled, which checks
    its types.
    """
    need_language("nodejs")
    installed = os.environ.get("LLMD_OKE_NODE_MODULES")
    if installed is None:
        pytest.skip("LLMD_OKE_NODE_MODULES names no installed packages of examples/typescript")
    home = tmp_path_factory.mktemp("home")
    packages = home / "node_modules"
    (packages / "@pulumi").mkdir(parents=True)
    for package in Path(installed).iterdir():
        parts = package.iterdir() if package.name == "@pulumi" else (package,)
        for part in parts:
            (packages / part.relative_to(installed)).symlink_to(part)
    engine, host = locate("pulumi"), locate(LANGUAGES["nodejs"])
    assert engine
    assert host
    language = home / "plugins" / f"language-nodejs-{host.version}"
    language.mkdir(parents=True)
    (language / LANGUAGES["nodejs"]).symlink_to(host.path)
    variables = {"PULUMI_HOME": str(home), "PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_IGNORE_AMBIENT_PLUGINS": "true"}
    schema = ROOT / "components" / "schema.json"
    words = ("package", "gen-sdk", schema, "--language", "nodejs", "--out", home / "sdk")
    run(engine.path, *words, folder=home, **variables)
    sdk = packages / SDK
    shutil.copytree(home / "sdk" / "nodejs", sdk)
    run(packages / ".bin" / "tsc", "-p", ".", folder=sdk)
    described = json.loads((sdk / "package.json").read_text())
    (sdk / "package.json").write_text(json.dumps({**described, "main": "bin/index.js", "types": "bin/index.d.ts"}))
    shutil.copyfile(sdk / "package.json", sdk / "bin" / "package.json")
    return packages


def typescript(name: str, folder: Path, packages: Path) -> Project:
    """Return a copy of an example in TypeScript with its packages, once its types have been checked."""
    project = example(name, folder)
    (project.folder / "node_modules").symlink_to(packages)
    run(packages / ".bin" / "tsc", "-p", ".", folder=project.folder)
    return project


def deploy(project: Project) -> None:
    try:
        ended = project.rehearse("rehearsal")
        assert ended.status == 0, ended.errors
        (smoke,) = ended.document["smoke"]
        assert smoke["passed"]
        assert ended.document["update"]["outputs"]["url"] == "http://gpt-oss-120b.chat.svc.cluster.local"
    finally:
        assert project.command("rehearse", "down").status == 0


def deploy_both(first: Project, second: Project) -> None:
    """Deploy a stack, and another that refers to it and adds a model; both models serve."""
    after = ("--after", str(first.folder), "--json", "--time-scale", TIME_SCALE)
    try:
        ended = second.command("rehearse", "--stack", "rehearsal", *after)
        assert ended.status == 0, ended.errors
        assert [smoke["passed"] for smoke in ended.document["smoke"]] == [True, True]
        assert ended.document["update"]["outputs"] == {"url": "http://llama.llm-d.svc.cluster.local"}
    finally:
        assert second.command("rehearse", "down").status == 0


@pytest.mark.usefixtures("project")
def test_a_project_in_typescript_passes_the_type_check_is_deployed_and_serves(packages: Path, tmp_path: Path) -> None:
    deploy(typescript("typescript", tmp_path / "chat", packages))


@pytest.mark.usefixtures("project")
def test_a_project_in_yaml_is_deployed_and_serves(tmp_path: Path) -> None:
    need_language("yaml")
    deploy(example("yaml", tmp_path / "chat"))


@pytest.mark.usefixtures("project")
def test_a_second_model_in_yaml_serves_where_a_typescript_project_serves(packages: Path, tmp_path: Path) -> None:
    need_language("yaml")
    first = typescript("existing-cluster/typescript", tmp_path / "first", packages)
    deploy_both(first, example("second-model/yaml", tmp_path / "second"))


@pytest.mark.usefixtures("project")
def test_a_second_model_in_typescript_serves_where_a_yaml_project_serves(packages: Path, tmp_path: Path) -> None:
    need_language("yaml")
    first = example("existing-cluster/yaml", tmp_path / "first")
    deploy_both(first, typescript("second-model/typescript", tmp_path / "second", packages))
