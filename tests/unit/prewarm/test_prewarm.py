"""The program that fills a model cache, against a loopback stand-in for those who have the weights."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hub_for_tests import COMMIT, FILES, REPOSITORY, VOCABULARY, Hub, md5_of_parts, run, snapshot
from llmd_oke.serving import bench_program
from llmd_pods.prewarm import fill, places, sources, transfer, web

WANTED = {path: content for path, content in FILES.items() if not path.startswith("original/")}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_stored_in_the_layout_of_hugging_faces_cache_with_progress_shown(hub, tmp_path, capfd):
    assert run(tmp_path) == 0
    assert files(snapshot(tmp_path)) == WANTED
    assert (tmp_path / "hub/models--owner--model/refs/main").read_text() == COMMIT
    assert "(100 %)" in capfd.readouterr().out


def test_pre_warming_downloads_only_what_the_cache_lacks_and_else_sends_no_request(hub, tmp_path):
    run(tmp_path)
    hub.requests.clear()
    assert run(tmp_path) == 0
    assert hub.requests == []
    (snapshot(tmp_path) / "model-1.safetensors").unlink()
    assert run(tmp_path) == 0
    assert files(snapshot(tmp_path)) == WANTED
    assert len(hub.asked_for("/resolve/")) == 1


def test_an_interrupted_download_is_resumed_and_leaves_no_unfinished_file(hub, tmp_path):
    hub.broken["model-1.safetensors"] = 4000
    assert run(tmp_path) == 0
    assert files(snapshot(tmp_path)) == WANTED
    assert [asked[1] for asked in hub.asked_for("model-1")] == [None, "bytes=4000-"]
    assert not places.CacheFolder(tmp_path, REPOSITORY, "main").unfinished.exists()


def test_a_terminated_pre_warming_is_resumed(hub, tmp_path):
    partial = places.CacheFolder(tmp_path, REPOSITORY, "main").unfinished / "model-1.safetensors"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(FILES["model-1.safetensors"][:1234])
    assert run(tmp_path) == 0
    assert [asked[1] for asked in hub.asked_for("model-1")] == ["bytes=1234-"]


def test_pre_warming_repeats_requests_after_wrong_content_and_http_429_and_503(hub, tmp_path):
    hub.wrong["model-1.safetensors"] = bytes(len(FILES["model-1.safetensors"]))
    hub.status[f"/api/models/{REPOSITORY}/tree/{COMMIT}"] = [429, 503]
    assert run(tmp_path) == 0
    assert files(snapshot(tmp_path)) == WANTED


@pytest.mark.parametrize(("status", "hint"), [(401, "token"), (403, "license"), (404, "no such repository")])
def test_a_refused_download_ends_pre_warming_at_once_with_its_cause(hub, tmp_path, capfd, status, hint):
    hub.status[f"/api/models/{REPOSITORY}/revision/main"] = [status]
    assert run(tmp_path) == 1
    assert hint in capfd.readouterr().err
    assert len(hub.requests) == 1


def test_a_repository_of_another_commit_than_pinned_or_without_weights_is_refused(hub, tmp_path, capfd):
    assert run(tmp_path, f"--revision={'d' * 40}") == 1
    assert f"it answers with commit {COMMIT}" in capfd.readouterr().err
    hub.files = {"config.json": b"{}"}
    assert run(tmp_path) == 1
    assert "no weights" in capfd.readouterr().err


def test_a_model_cache_without_enough_space_is_refused_before_any_download(hub, tmp_path, capfd, monkeypatch):
    full = os.statvfs_result((1, 1, 100, 1, 1, 1, 1, 1, 0, 255))
    monkeypatch.setattr(transfer.os, "statvfs", lambda path: full)
    assert run(tmp_path) == 1
    assert "are needed" in capfd.readouterr().err
    assert hub.asked_for("/resolve/") == []


def test_a_hugging_face_token_is_sent_without_line_break_and_to_no_redirects_host(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    assert run(tmp_path) == 0
    assert {asked[2] for asked in hub.requests} == {"Bearer hf_secret"}
    request = web.urllib.request.Request("https://hub.example/a", headers={"Authorization": "Bearer hf_secret"})
    redirects = web._Redirects()
    away = redirects.redirect_request(request, None, 302, "", {}, "https://elsewhere.example/a")
    home = redirects.redirect_request(request, None, 302, "", {}, "https://hub.example/b")
    assert (away.get_header("Authorization"), home.get_header("Authorization")) == (None, "Bearer hf_secret")


def test_a_bucket_is_read_with_a_pre_authenticated_link_that_is_never_shown(hub, tmp_path, capfd):
    hub.broken["model-1.safetensors"] = 10
    assert run(tmp_path, "--source=object-storage") == 0
    (folder,) = (tmp_path / "hub/models--owner--model/snapshots").iterdir()
    assert files(folder) == FILES
    assert (tmp_path / "hub/models--owner--model/refs/main").read_text() == folder.name
    told = capfd.readouterr()
    assert "/p/secret" not in told.out + told.err


@pytest.fixture
def bucket(hub: Hub) -> Hub:
    """A bucket with one file of three parts beside small ones."""
    hub.files = {"config.json": b"{}", LARGE: bytes(range(256)) * 4 * 1024 * 2 + b"end"}
    hub.part_bytes[LARGE] = 2**20
    return hub


LARGE = "model.safetensors"


def from_bucket(cache: Path, *arguments: str) -> int:
    return run(cache, "--source=object-storage", *arguments)


def test_an_object_uploaded_in_parts_is_verified_by_the_md5_of_its_parts(bucket, tmp_path, capfd):
    assert from_bucket(tmp_path) == 0
    assert "all 2 files have the announced checksums (1 by md5, 1 by md5-of-parts)" in capfd.readouterr().out
    assert [file.read_bytes() for file in tmp_path.rglob(LARGE)] == [bucket.files[LARGE]]


def test_a_resumed_multi_part_object_with_wrong_content_is_downloaded_again(bucket, tmp_path):
    bucket.broken[LARGE] = 1000
    bucket.wrong[LARGE] = bytes(len(bucket.files[LARGE]))
    assert from_bucket(tmp_path) == 0
    assert [file.read_bytes() for file in tmp_path.rglob(LARGE)] == [bucket.files[LARGE]]


def test_bucket_objects_that_cannot_be_verified_are_counted_and_not_kept(bucket, tmp_path, capfd):
    bucket.part_bytes = {LARGE: 2**20 - 7, "config.json": 1}
    assert from_bucket(tmp_path) == 1
    told = capfd.readouterr().err
    assert "2 of 2 files can't be verified, because they were uploaded in parts of a size that was not found" in told
    assert "SHA256SUMS" in told
    assert not list(tmp_path.rglob(f"{LARGE}*"))
    assert len(bucket.asked_for(LARGE)) == 1


def test_bucket_files_without_a_checksum_are_refused_before_they_are_downloaded(bucket, tmp_path, capfd):
    bucket.unlisted = {LARGE}
    assert from_bucket(tmp_path) == 1
    assert "1 of 2 files can't be verified, because they have no checksum: model.safetensors" in capfd.readouterr().err
    assert not bucket.asked_for(LARGE)


@pytest.mark.parametrize("header", ["opc-content-sha256", "opc-multipart-md5", "Content-MD5"])
def test_a_checksum_that_a_bucket_listing_lacks_is_read_from_the_objects_headers(bucket, tmp_path, header):
    content = bucket.files[LARGE]
    checksums = {
        "opc-content-sha256": base64.b64encode(hashlib.sha256(content).digest()).decode(),
        "opc-multipart-md5": md5_of_parts(content, 2**20),
        "Content-MD5": base64.b64encode(hashlib.md5(content).digest()).decode(),  # noqa: S324
    }
    bucket.unlisted = {LARGE}
    bucket.headers = {LARGE: {header: checksums[header]}}
    assert from_bucket(tmp_path) == 0


def with_sums(bucket: Hub, *paths: str) -> None:
    lines = [f"{hashlib.sha256(bucket.files[path]).hexdigest()}  ./{path}" for path in paths]
    bucket.files["SHA256SUMS"] = "\n".join(lines).encode()


def test_a_checksum_file_verifies_objects_with_any_part_size_if_it_lists_them(bucket, tmp_path, capfd):
    bucket.part_bytes = {LARGE: 2**20 - 7}
    with_sums(bucket, LARGE)
    assert from_bucket(tmp_path) == 1
    assert "1 of 2 files can't be verified, because they have no checksum: config.json" in capfd.readouterr().err
    del bucket.files["SHA256SUMS"]
    with_sums(bucket, LARGE, "config.json")
    assert from_bucket(tmp_path) == 0
    assert "all 2 files have the announced checksums (2 by sha256)" in capfd.readouterr().out


def test_a_bucket_with_other_files_than_the_pinned_ones_is_refused(bucket, tmp_path, capfd):
    assert from_bucket(tmp_path / "first") == 0
    commit = (tmp_path / "first/hub/models--owner--model/refs/main").read_text()
    assert f"commit {commit}" in capfd.readouterr().out
    assert from_bucket(tmp_path / "second", f"--revision={commit}") == 0
    bucket.files[LARGE] = bytes(len(bucket.files[LARGE]))
    assert from_bucket(tmp_path / "third", f"--revision={commit}") == 1
    assert f"not the pinned {commit}" in capfd.readouterr().err


def test_a_draft_model_is_downloaded_beside_the_model_only_once(hub, tmp_path):
    given = (f"--revision={COMMIT}", f"--draft={REPOSITORY}@main")
    assert run(tmp_path, *given) == 0
    assert (tmp_path / ".llmd-oke" / "models--owner--model@main.json").is_file()
    assert files(snapshot(tmp_path)) == WANTED
    hub.requests.clear()
    assert run(tmp_path, *given) == 0
    assert hub.requests == []


def test_a_missing_repository_of_a_draft_model_is_an_error(hub, tmp_path, capfd):
    assert run(tmp_path, f"--revision={COMMIT}", f"--draft=owner/none@{COMMIT}") == 1
    assert "owner/none" in capfd.readouterr().err


def test_possible_part_sizes_of_an_upload_are_tried_from_128_mib_on():
    assert transfer.part_sizes(4_600 * 2**20, 36)[0] == 128 * 2**20
    assert transfer.part_sizes(7, 1) == [7]
    assert transfer.part_sizes(7, 2) == []
    assert len(transfer.part_sizes(10**12, 2)) == transfer.MAX_PART_SIZES


def test_pre_warming_from_a_bucket_without_its_secret_link_is_refused(tmp_path, capfd):
    assert run(tmp_path, "--source=object-storage") == 1
    assert "MODEL_SOURCE_URL" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["HF_TOKEN", "MODEL_SOURCE_URL"])
@pytest.mark.parametrize(
    "value", ["planted\nx", "planted x", "planted\x01", "pläntedx-planted", "planted/p/x", "file:///planted"]
)
def test_an_invalid_secret_never_appears_in_the_output_of_pre_warming(hub, tmp_path, monkeypatch, capfd, name, value):
    """Python's own errors have addresses and headers in their words."""
    monkeypatch.setenv(name, value)
    status = run(tmp_path, *(["--source=object-storage"] if name == "MODEL_SOURCE_URL" else []))
    told = capfd.readouterr()
    assert "planted" not in told.out + told.err
    assert status == (0 if name == "HF_TOKEN" and "/" in value else 1)


def test_urls_in_messages_have_no_password():
    assert web.without_secrets("https://user:planted@host/p/planted/n?planted") == "https://host/p/..."


def test_of_two_pre_warming_programs_on_one_cache_only_one_downloads(hub, tmp_path):
    place = places.CacheFolder(tmp_path, REPOSITORY, "main")
    source = web.Web()
    statuses = []

    def ensure() -> None:
        def listed():
            return sources.list_hugging_face(source, hub.url, REPOSITORY, "main")

        fill.ensure(place, listed, source, 2, poll_s=0.01)
        statuses.append("complete")

    both = [threading.Thread(target=ensure) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(30)
    assert statuses == ["complete"] * 2
    assert len(hub.asked_for("/resolve/")) == len(WANTED)
    assert not place.lock.exists()


def test_the_lock_of_a_crashed_pre_warming_program_is_taken_over(hub, tmp_path):
    lock = places.CacheFolder(tmp_path, REPOSITORY, "main").lock
    lock.parent.mkdir(parents=True)
    lock.write_text("dead")
    long_ago = lock.stat().st_mtime - fill.STALE_AFTER_S - 1
    os.utime(lock, (long_ago, long_ago))
    assert run(tmp_path) == 0


def test_another_revision_of_a_model_is_recorded_separately_in_the_cache(hub, tmp_path):
    run(tmp_path)
    hub.requests.clear()
    assert run(tmp_path, "--revision=pinned") == 0
    assert hub.asked_for("/revision/pinned")
    records = {path.name for path in (tmp_path / ".llmd-oke").glob("*.json")}
    assert records == {"models--owner--model@main.json", "models--owner--model@pinned.json"}


def test_pre_warming_runs_from_the_files_in_its_configmap_without_the_kit_installed(hub, tmp_path):
    """Run as in a pod: the files in a folder `prewarm`, and nothing of the kit importable."""
    folder = tmp_path / "prewarm"
    folder.mkdir()
    for name, text in bench_program.files("prewarm").items():
        (folder / name).write_text(text)
    plain = [sys.executable, "-S", "-B", "-m", "prewarm", f"--cache={tmp_path / 'cache'}", f"--repository={REPOSITORY}"]
    done = subprocess.run(
        plain, cwd=tmp_path, env={"HF_ENDPOINT": hub.url}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "cache/.llmd-oke/models--owner--model@main.json").read_text())["commit"] == COMMIT


def with_vocabulary(hub: Hub, cache: Path, *arguments: str, content: bytes = VOCABULARY) -> int:
    facts = {
        "file": "o200k_base.tiktoken",
        "url": f"{hub.url}/encodings/o200k_base.tiktoken",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    }
    return run(cache, f"--vocabulary={json.dumps(facts)}", *arguments)


def test_a_vocabulary_is_stored_beside_the_weights_even_if_they_exist_already(hub, tmp_path, monkeypatch):
    run(tmp_path)
    hub.requests.clear()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert with_vocabulary(hub, tmp_path) == 0
    assert hub.requests == [("/encodings/o200k_base.tiktoken", None, None)]
    assert files(tmp_path / "encodings") == {"o200k_base.tiktoken": VOCABULARY}
    assert files(snapshot(tmp_path)) == WANTED
    assert with_vocabulary(hub, tmp_path) == 0
    assert len(hub.requests) == 1


def test_a_tokenizer_vocabulary_of_another_digest_than_announced_is_refused(hub, tmp_path, capfd):
    assert with_vocabulary(hub, tmp_path, content=VOCABULARY[::-1]) == 1
    assert files(tmp_path / "encodings") == {}
    assert "the content is not what was announced" in capfd.readouterr().err


def test_a_vocabulary_in_a_bucket_is_downloaded_with_the_weights(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("MODEL_SOURCE_URL", f"{hub.url}/p/secret/n/ns/b/bucket/o/")
    assert with_vocabulary(hub, tmp_path, "--source=object-storage") == 0
    assert files(tmp_path / "encodings") == {"o200k_base.tiktoken": VOCABULARY}
    assert not [path for path, _, _ in hub.requests if path.startswith("/encodings/")]


@pytest.mark.parametrize("source", ["hugging-face", "object-storage"])
@pytest.mark.parametrize(
    "name",
    ["../../../../models--other--model/snapshots/x/w.safetensors", "/etc/cron.d/x", "a\\..\\b", "a\x00b", "a//b", ".."],
)
def test_a_listed_file_whose_name_leaves_the_cache_is_refused_before_any_write(hub, tmp_path, source, name, capfd):
    hub.files = {"model.safetensors": b"weights", name: b"evil"}
    assert run(tmp_path / "mounted" / "cache", f"--source={source}") == 1
    assert "error" in capfd.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() in {b"evil", b"weights"}]


def test_a_symbolic_link_in_the_model_cache_cannot_make_writes_leave_the_cache(hub, tmp_path):
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    outside.mkdir()
    (cache / "hub").mkdir(parents=True)
    (cache / "hub" / "models--owner--model").symlink_to(outside)
    assert run(cache) == 1
    assert not list(outside.iterdir())


def test_a_cache_in_hugging_faces_layout_keeps_its_links_to_blobs(hub, tmp_path):
    blob = tmp_path / "hub/models--owner--model/blobs/abc"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(FILES["config.json"])
    linked = snapshot(tmp_path) / "config.json"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(blob)
    assert run(tmp_path) == 0
    assert linked.is_symlink()
    assert not hub.asked_for("config.json")


ENTRY = {"type": "file", "path": "model.safetensors", "size": 7, "oid": "x"}


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([ENTRY, ENTRY], "the listing has a file twice"),
        *(([{**ENTRY, "size": size}], "is no listing of files") for size in (-1, "7", None, True, 1.5)),
    ],
)
def test_a_listing_with_an_invalid_size_or_a_file_twice_is_refused(hub, tmp_path, monkeypatch, entries, said, capfd):
    monkeypatch.setattr(hub, "_tree", lambda: entries)
    assert run(tmp_path) == 1
    assert said in capfd.readouterr().err


def test_two_models_download_a_vocabulary_to_different_unfinished_files(tmp_path):
    models = [places.CacheFolder(tmp_path, name, "main") for name in ("owner/model", "owner/other")]
    assert models[0].unfinished != models[1].unfinished


@pytest.mark.parametrize("commit", ["../../evil", "main", "c" * 39, ""])
def test_a_repository_with_an_invalid_commit_is_refused(hub, tmp_path, monkeypatch, commit, capfd):
    monkeypatch.setattr("hub_for_tests.COMMIT", commit)
    assert run(tmp_path) == 1
    assert "is no commit" in capfd.readouterr().err


@pytest.mark.parametrize("record", ["[]", '{"commit": "../../x", "files": {}}', '{"commit": 1, "files": {"../x": 1}}'])
def test_a_cache_whose_record_lists_files_outside_of_it_is_not_complete(tmp_path, record):
    place = places.CacheFolder(tmp_path, REPOSITORY, "main")
    places.write_whole(place.record, record)
    assert not place.is_complete()
