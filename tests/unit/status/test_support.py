"""`llmd-oke support`: what its archive has, what it never has, and what is missing where something fails."""

import json
import tarfile
from pathlib import Path

import pytest
import stack_files
from llmd_oke.operations import support
from llmd_oke.operations.text_redaction import HIDDEN, redact, redact_text
from stack_cluster import NAMESPACE, Run, StackCluster, kubeconfig, small_stack

TOKEN = "hf_planted0123456789"
SAFE = ("prompt_tokens: 123456", "max_num_batched_tokens=8192", "tokenizer=openai/gpt-oss-120b", "12 tokens/s")
SECRETS = (
    TOKEN,
    "Authorization: Bearer abcdef0123456789",
    "HF_TOKEN=abcdef0123456789",
    '"apiKey": "abcdef0123456789"',
    '{\\"password\\": \\"abcdef0123456789\\"}',
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.abcdef0123456789",
    "https://user:abcdef0123456789@registry.example",
    "https://objectstorage.example/p/abcdef0123456789/n/ns/b/bucket",
    "https://bucket.example/o?X-Amz-Signature=abcdef0123456789&x=1",
    "-----BEGIN RSA PRIVATE KEY-----\nabcdef0123456789\n-----END RSA PRIVATE KEY-----",
    "pul-abcdef0123456789",
)


def log(cluster: StackCluster, text: str) -> None:
    for pod in cluster.pods:
        cluster.answers[f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/log"] = 200, text


def packed(run: Run, folder: Path, *options: str) -> dict[str, str]:
    """The files of the archive by their paths in it."""
    file = folder / "out.tar.gz"
    result = run("support", "--output", str(file), *options)
    assert result.exit_code == 0, result.output
    assert file.stat().st_mode & 0o077 == 0
    with tarfile.open(file) as archive:
        members = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {name.removeprefix("out/"): content.read().decode() for name, content in members.items() if content}


def missing(files: dict[str, str]) -> dict[str, str]:
    """Return the reason of each file that the archive lacks, by its path."""
    return {item["path"]: item["why"] for item in json.loads(files["manifest.json"])["missing"]}


@pytest.mark.parametrize("text", SECRETS)
def test_support_archives_redact_texts_that_look_like_secrets(text):
    assert HIDDEN in redact_text(f"a {text} b")
    assert not [planted for planted in ("abcdef0123456789", TOKEN) if planted in redact_text(text)]


LONG = {"x": 300_000, "token": 60_000, "a:b": 100_000, "://": 100_000}


@pytest.mark.parametrize(
    "text", [*SAFE, *(pytest.param(text * count, id=f"{text} ...") for text, count in LONG.items())]
)
@pytest.mark.timeout(20)
def test_support_archives_keep_texts_that_only_resemble_secrets_and_long_ones(text):
    assert redact_text(text) == text


def test_support_archives_redact_values_of_secret_keys_and_environment_variables():
    document = {
        "env": [{"name": "HF_TOKEN", "value": "x"}, {"name": "PORT", "value": "8000"}],
        "config": {"llmd-oke:modelSourceUrl": {"secure": "v1:x"}},
        "encryptionsalt": "v1:x",
        "tokens": "many",
    }
    assert redact(document) == {
        "env": [{"name": "HF_TOKEN", "value": HIDDEN}, {"name": "PORT", "value": "8000"}],
        "config": {"llmd-oke:modelSourceUrl": {"secure": HIDDEN}},
        "encryptionsalt": HIDDEN,
        "tokens": "many",
    }


def test_the_support_archive_has_status_plan_objects_reports_and_logs(run, cluster, project):
    log(cluster, "started\n")
    latest = project / "reports" / "s" / "latest"
    latest.mkdir(parents=True)
    (latest / "summary.json").write_text("{}")
    files = packed(run, project)
    manifest = json.loads(files["manifest.json"])
    assert {item["path"] for item in manifest["files"]} == files.keys() - {"manifest.json"}
    assert manifest["missing"] == []
    expected = {"status.json", "status.txt", "plan.json", "stack.json", "versions.json", "reports/summary.json"}
    expected |= {f"cluster/{name}.json" for name in ("nodes", "pods", "deployments", "jobs", "warnings")}
    assert expected <= files.keys()
    assert sum(path.startswith("logs/") for path in files) == len(cluster.pods)


def test_no_secret_of_stack_file_objects_or_logs_is_in_the_support_archive(run, cluster, project):
    log(cluster, "\n".join(SECRETS))
    settings = {"llmd-oke:huggingFaceToken": {"secure": "v1:abcdef0123456789"}}
    engine = {"env": {"MY_API_KEY": "abcdef0123456789"}}
    stack = small_stack(models=[stack_files.model("2p-tp1-1d-tp2", engine=engine)])
    stack_files.write(project, "s", stack, settings, encryptionsalt="v1:abcdef0123456789")
    variable = {"name": "MY_API_KEY", "value": "abcdef0123456789"}
    cluster.pod("-decode-")["spec"]["containers"][0]["env"] = [variable]
    files = packed(run, project)
    assert [path for path, text in files.items() if "abcdef0123456789" in text or TOKEN in text] == []
    assert [path for path in cluster.asked if "secrets" in path or "configmaps" in path] == []


def test_without_cluster_kubeconfig_or_valid_stack_a_support_archive_has_the_rest(run, project, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(project, "http://127.0.0.1:1")))
    files = packed(run, project)
    assert "plan.json" in files
    assert {"cluster/nodes.json", "cluster/pods.json", "logs", "reports"} <= missing(files).keys()
    monkeypatch.setenv("KUBECONFIG", str(project / "none"))
    assert "plan.json" in packed(run, project)
    stack_files.write(project, "s", {**small_stack(), "release": "llm-d-9"})
    files = packed(run, project)
    assert "stack.json" in files
    assert "release" in missing(files)["status.json"]


def test_an_unreadable_log_is_noted_in_the_support_archives_manifest(run, cluster, project):
    log(cluster, "started\n")
    name = cluster.pod("-decode-")["metadata"]["name"]
    cluster.answers[f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log"] = 403, '{"message": "no"}'
    told = {path: why for path, why in missing(packed(run, project)).items() if "logs" in path}
    assert told == {f"logs/{name}/vllm.log": "HTTP 403: no"}


def test_logs_in_a_support_archive_are_cut_to_their_end_at_a_size_limit(run, cluster, project, monkeypatch):
    monkeypatch.setattr(support, "MAX_LOG_BYTES", 1000)
    log(cluster, "x" * 5000 + "the end")
    files = packed(run, project)
    cut = [item for item in json.loads(files["manifest.json"])["files"] if item["cut"]]
    assert {item["bytes"] for item in cut} == {1000}
    assert files[cut[0]["path"]].endswith("the end")
    monkeypatch.setattr(support, "MAX_BYTES", 100)
    assert "the archive has its" in next(iter(missing(packed(run, project)).values()))


def test_support_lists_the_archives_contents_as_json_and_refuses_a_missing_folder(run, project):
    written = json.loads(run("support", "--output", str(project / "x.tar.gz"), "--json").stdout)
    assert "status.json" in written["files"]
    assert written["file"] == str(project / "x.tar.gz")
    refused = run("support", "--output", str(project / "none" / "x.tar.gz"))
    assert "is no folder" in str(refused.exception)
