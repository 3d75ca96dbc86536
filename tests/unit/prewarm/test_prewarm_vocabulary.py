"""A pre-warmed gpt-oss server reads its vocabulary from the cache: the real `openai-harmony`, where nothing is reached.

The package has the file's digest built in, so that a small file shows where it looks and what it insists on, not that
it loads: that needs the real file, which `LLMD_OKE_VOCABULARY` names where a machine has it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_for_tests import VOCABULARY, Hub, run
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue
from llmd_oke.serving import units, vllm
from llmd_oke.serving.args import ModelCacheMountArgs

ALONE = ["unshare", "--user", "--map-root-user", "--net"]
"""A network namespace with nothing in it but a loopback device that is down."""

LOAD = "import openai_harmony as h; h.load_harmony_encoding(h.HarmonyEncodingName.HARMONY_GPT_OSS); print('loaded')"
FACTS = next(model.vocabulary for model in map(catalogue.model, catalogue.model_names()) if model and model.vocabulary)

pytest.importorskip("openai_harmony")

pytestmark = pytest.mark.skipif(
    subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this machine gives no network namespaces to its users",
)


def prewarmed(hub: Hub, cache: Path) -> Path:
    """A cache that the program filled from stand-ins, with a small vocabulary."""
    facts = {**FACTS.model_dump(), "url": f"{hub.url}/encodings/{FACTS.file}"}
    facts |= {"sha256": hashlib.sha256(VOCABULARY).hexdigest(), "bytes": len(VOCABULARY)}
    assert run(cache, f"--vocabulary={json.dumps(facts)}") == 0
    return cache


def variables(cache: Path) -> dict[str, str]:
    """The variables of a pre-warmed server, with the cache where a test has it."""
    mount: ModelCacheMountArgs = {"path": "/models", "prewarm": {"source": "hugging-face"}}
    spec = units.server_spec(
        {
            "release": catalogue.default_release().name,
            "model": "gpt-oss-120b",
            "shape": "BM.GPU.MI300X.8",
            "namespace": "n",
            "service_account": "s",
            "model_cache": mount,
        },
        "prefill",
        Parallelism(1),
    )
    entries = {entry["name"]: entry.get("value") for entry in vllm.environment(spec)}
    return {name: value.replace(vllm.CACHE_FOLDER, str(cache)) for name, value in entries.items() if value}


def load(environment: dict[str, str], temporary: Path) -> subprocess.CompletedProcess[str]:
    """Load the encoding of gpt-oss without any network and with an empty folder for downloads."""
    own = {"PATH": os.environ["PATH"], "TMPDIR": str(temporary), **environment}
    return subprocess.run(
        [*ALONE, sys.executable, "-c", LOAD], env=own, capture_output=True, text=True, check=False, timeout=60
    )


def test_openai_harmony_loads_the_pre_warmed_vocabulary_and_checks_its_digest(hub, tmp_path):
    done = load(variables(prewarmed(hub, tmp_path / "cache")), tmp_path)
    small = hashlib.sha256(VOCABULARY).hexdigest()
    assert f"hash mismatch: computed={small}, expected={FACTS.sha256}" in done.stderr


def test_openai_harmony_without_its_variable_tries_to_download_the_vocabulary(hub, tmp_path):
    environment = variables(prewarmed(hub, tmp_path / "cache"))
    del environment[FACTS.variable]
    assert "error downloading or loading vocab file" in load(environment, tmp_path).stderr


@pytest.mark.skipif("LLMD_OKE_VOCABULARY" not in os.environ, reason="LLMD_OKE_VOCABULARY names no o200k_base.tiktoken")
def test_the_published_gpt_oss_vocabulary_loads_without_network_access(tmp_path):
    folder = tmp_path / "cache" / "encodings"
    folder.mkdir(parents=True)
    shutil.copy(os.environ["LLMD_OKE_VOCABULARY"], folder / FACTS.file)
    assert (folder / FACTS.file).stat().st_size == FACTS.bytes
    assert load(variables(tmp_path / "cache"), tmp_path).stdout == "loaded\n"
