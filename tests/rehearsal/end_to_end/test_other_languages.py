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
from user_project import ROOT, Project

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


def add_sdk(project: Path, home: Path) -> None:
    """Generate the SDK for TypeScript, compile it, which checks its types, and put it among the project's packages."""
    installed = os.environ.get("LLMD_OKE_NODE_MODULES")
    if installed is None:
        pytest.skip("LLMD_OKE_NODE_MODULES names no installed packages of examples/typescript")
    (project / "node_modules" / "@pulumi").mkdir(parents=True)
    for package in Path(installed).iterdir():
        parts = package.iterdir() if package.name == "@pulumi" else (package,)
        for part in parts:
            (project / "node_modules" / part.relative_to(installed)).symlink_to(part)
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
    sdk = project / "node_modules" / SDK
    shutil.copytree(home / "sdk" / "nodejs", sdk)
    run(project / "node_modules" / ".bin" / "tsc", "-p", ".", folder=sdk)
    described = json.loads((sdk / "package.json").read_text())
    (sdk / "package.json").write_text(json.dumps({**described, "main": "bin/index.js", "types": "bin/index.d.ts"}))
    shutil.copyfile(sdk / "package.json", sdk / "bin" / "package.json")


def deploy(project: Project) -> None:
    try:
        ended = project.rehearse("rehearsal")
        assert ended.status == 0, ended.errors
        (smoke,) = ended.document["smoke"]
        assert smoke["passed"]
        assert ended.document["update"]["outputs"]["url"] == "http://gpt-oss-120b.chat.svc.cluster.local"
    finally:
        assert project.command("rehearse", "down").status == 0


def test_a_project_in_typescript_passes_the_type_check_is_deployed_and_serves(project: Project, tmp_path: Path) -> None:
    need_language("nodejs")
    chat = example("typescript", tmp_path / "chat")
    add_sdk(chat.folder, tmp_path / "home")
    run(chat.folder / "node_modules" / ".bin" / "tsc", "-p", ".", folder=chat.folder)
    deploy(chat)


def test_a_project_in_yaml_is_deployed_and_serves(project: Project, tmp_path: Path) -> None:
    need_language("yaml")
    deploy(example("yaml", tmp_path / "chat"))
