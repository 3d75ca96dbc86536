"""Stand-ins for Hugging Face and Object Storage, filled from by the real pre-warm program."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from aiohttp.test_utils import TestServer
from llmd_oke import catalogue
from llmd_pods.prewarm.places import REHEARSED_VOCABULARY
from llmd_rehearsal import model_sources
from llmd_rehearsal.model_server import ModelSources
from llmd_rehearsal.model_sources import source_hosts
from llmd_rehearsal.source_credentials import ValidCredentials
from llmd_rehearsal.vllm.command import settings
from llmd_rehearsal.vllm.startup import ContainerFiles, read_draft

REPOSITORY = "openai/gpt-oss-120b"
MODEL = next(model for model in map(catalogue.model, catalogue.model_names()) if model and model.vocabulary)


@asynccontextmanager
async def _serving(sources: ModelSources) -> AsyncGenerator[str]:
    """Serve model sources meanwhile, without TLS; return their address."""
    async with TestServer(sources.application()) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with _serving(ModelSources(source_hosts(), lambda: [MODEL])) as address:
        yield address


async def _prewarm(
    cache: Path, repository: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "llmd_pods.prewarm", f"--cache={cache}", f"--repository={repository}", *arguments]
    return await asyncio.to_thread(
        subprocess.run, argv, env=environment, capture_output=True, text=True, check=False, timeout=30
    )


def _kept(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("snapshots/*/*")}


@pytest.mark.parametrize("source", ["hugging-face", "object-storage"])
async def test_pre_warming_loads_model_draft_and_vocabulary_from_each_source(
    address: str, tmp_path: Path, source: str
) -> None:
    """A simulated server finds the draft then."""
    assert MODEL.draft
    assert MODEL.vocabulary
    draft, size = MODEL.draft.repository, MODEL.vocabulary.bytes
    digest = hashlib.sha256(model_sources.vocabulary("o200k_base.tiktoken", size)).hexdigest()
    facts = {**MODEL.vocabulary.model_dump(), "url": f"{address}/encodings/o200k_base.tiktoken"}
    places = {"HF_ENDPOINT": address, "MODEL_SOURCE_URL": address + source_hosts().bucket_path("any")}
    asked = (f"--source={source}", f"--draft={draft}@main", f"--vocabulary={json.dumps(facts)}")
    done = await _prewarm(tmp_path, REPOSITORY, *asked, **places, **{REHEARSED_VOCABULARY: digest})
    assert done.returncode == 0, done.stderr
    assert "259.0 KiB of 259.0 KiB (100 %)" in done.stdout
    assert _kept(tmp_path) == set(source_hosts().files)
    assert (tmp_path / "encodings" / "o200k_base.tiktoken").stat().st_size == size
    config = json.dumps({"method": "eagle3", "model": draft, "num_speculative_tokens": 2})
    speculated = settings(["vllm", "serve", REPOSITORY, "--speculative-config", config], {}).draft
    assert speculated is not None
    files = ContainerFiles({"/model-cache": str(tmp_path)})
    folder = read_draft(speculated, {"HF_HOME": "/model-cache"}, files)
    assert read_draft(replace(speculated, model=folder), {}, files) == folder


@pytest.mark.parametrize(
    ("token", "link", "told"),
    [
        ("", "", None),
        ("hf_valid", "", None),
        ("hf_revoked", "", "HTTP 401 Unauthorized: the token is missing or not valid"),
        ("", "valid", None),
        ("", "deleted", "/p/...: HTTP 404 Not Found: the link has ended or was deleted"),
    ],
)
async def test_the_stand_ins_for_model_sources_refuse_revoked_tokens_and_deleted_links(
    tmp_path: Path, token: str, link: str, told: str | None
) -> None:
    valid = tmp_path / "valid.json"
    valid.write_text(ValidCredentials(tokens=("hf_valid",), requests=("valid",)).model_dump_json())
    async with _serving(ModelSources(source_hosts(), lambda: [MODEL], valid=valid)) as url:
        source = "--source=object-storage" if link else "--source=hugging-face"
        given = {"HF_ENDPOINT": url, "HF_TOKEN": token, "MODEL_SOURCE_URL": url + source_hosts().bucket_path(link)}
        done = await _prewarm(tmp_path / "cache", REPOSITORY, source, **given)
    assert (done.returncode == 0) == (told is None)
    assert (told or "") in done.stderr
    assert "revoked" not in done.stderr
    assert "/p/deleted" not in done.stderr


async def test_pre_warming_a_repository_outside_the_catalogue_fails_as_not_found(address: str, tmp_path: Path) -> None:
    done = await _prewarm(tmp_path, "openai/gpt-oss-121b", HF_ENDPOINT=address)
    assert done.returncode == 1
    assert "no such repository" in done.stderr


def test_simulated_hugging_face_resolves_a_commit_to_itself_a_branch_to_one_commit() -> None:
    assert model_sources.commit(REPOSITORY, "a" * 40) == "a" * 40
    assert model_sources.commit(REPOSITORY, "main") == model_sources.commit(REPOSITORY, "main") != "main"


async def test_a_model_repository_with_its_own_folder_is_served_from_that_folder(tmp_path: Path) -> None:
    folder, encodings = tmp_path / "tiny", tmp_path / "encodings"
    for file in (folder / "config.json", folder / "model.safetensors", encodings / "o200k_base.tiktoken"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(file.name)
    folders = {REPOSITORY: folder, "encodings": encodings}
    async with (
        _serving(ModelSources(source_hosts(), lambda: [MODEL], folders)) as url,
        httpx2.AsyncClient(base_url=url) as client,
    ):
        done = await _prewarm(tmp_path / "cache", REPOSITORY, HF_ENDPOINT=url)
        vocabulary = (await client.get("/encodings/o200k_base.tiktoken")).text
        head = await client.head(f"/{REPOSITORY}/resolve/{'a' * 40}/config.json")
    assert done.returncode == 0, done.stderr
    assert _kept(tmp_path / "cache") == {"config.json", "model.safetensors"}
    assert vocabulary == "o200k_base.tiktoken"
    assert head.headers["x-repo-commit"] == "a" * 40
    assert head.headers["etag"] == f'"{model_sources.digest("config.json", b"config.json")}"'
