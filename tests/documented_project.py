"""A project of the user's in which the commands of the pages can be run: stacks, results, a recipe, certificates."""

import json
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path

from certificates_for_tests import certificate, private_key
from llmd_base.row import Basis, Origin, Quantiles, Row
from llmd_bench.files import write_rows
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_oke.cli.main import app
from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model_of
from llmd_tuner.search_inputs import known_model, known_shape
from model_configs import FOLDER as MODEL_CONFIGS
from stack_files import model, stack, write
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "tests" / "unit" / "bench" / "data" / "published-guide-report-v0.1.yaml"
OUTPUTS = {"cluster_id": "ocid1.cluster.oc1.iad.example", "model_cache_handle": "ocid1.fs:10.0.0.9:/models"}
"""Outputs of a stack with `layer: cluster` and file storage."""


@dataclass(frozen=True)
class DocumentedProject:
    """A project as somebody has it who has followed the pages so far: a checkout with stack files of his own."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path) -> "DocumentedProject":
        """Write the files that the pages name. `S` is a stack with two nodes to spare that pulls from a registry of the
        user's, `prod` is what `init` writes for a new cluster.
        """
        _link_checkout(folder)
        _write_results(folder)
        project = cls(folder)
        mirror = {"prefix": "iad.ocir.io/namespace/mirror", "pullSecret": "ocir"}
        write(folder, "S", stack(model("4p-tp1-2d-tp2"), nodes=3, registryMirror=mirror))
        where = ("--region", "us-ashburn-1", "--compartment", "ocid1.compartment.oc1..example", "--load", "100")
        project.command("init", "--stack", "prod", *where)
        page = (ROOT / "docs" / "how-to" / "write-a-recipe.md").read_text()
        (folder / "recipe.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
        shutil.copyfile(PUBLISHED, folder / "guide.yaml")
        (folder / "outputs.json").write_text(json.dumps(OUTPUTS))
        key = private_key()
        (folder / "privkey.pem").write_text(key.pem)
        (folder / "fullchain.pem").write_text(certificate(key, "llm.example.com").chain)
        checkpoint = folder / "qwen3-8b"
        checkpoint.mkdir()
        shutil.copyfile(MODEL_CONFIGS / "qwen3-8b.json", checkpoint / "config.json")
        shutil.copyfile(MODEL_CONFIGS / "qwen3-8b.json", folder / "config.json")
        index = json.dumps({"metadata": {"total_size": 16381470720}, "weight_map": {}})
        (folder / "model.safetensors.index.json").write_text(index)
        project.command("tune", "fit", str(folder / "rows.jsonl"), "-o", str(folder / "fit.yaml"))
        return project

    def write_stacks_for(self, commands: str) -> None:
        """Write the stack files that commands ask for, where others don't do: none that `init` is to write, and the
        layer that takes outputs of another stack.
        """
        for name in re.findall(r"\binit\b.*--stack (\w+)", commands):
            (self.folder / "stacks" / f"Pulumi.{name}.yaml").unlink(missing_ok=True)
        if "--outputs" in commands:
            config = stack(layer="serving", clusterStack="organization/llmd-oke/cluster")
            del config["cluster"]
            write(self.folder, "S", {**config, "storage": {"modelCache": {"kind": "file-storage"}}})

    def command(self, *words: str) -> None:
        """Run a command of `llmd-oke`, of which everything after it makes use."""
        option = ("--project", str(self.folder)) if words[0] == "init" else ()
        ended = CliRunner().invoke(app, [*words, *option])
        assert ended.exit_code == 0, (words, ended.output, ended.exception)

    def copy(self, folder: Path) -> "DocumentedProject":
        """Return a copy of the project, for commands that write."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return DocumentedProject(folder)


def _link_checkout(folder: Path) -> None:
    """Link the repository's files as a checkout has them, with copies of stack files and the environment of these
    tests.
    """
    own = {".git", ".venv", "reports", "stacks", "values", ".rehearsal"}
    for item in ROOT.iterdir():
        if item.name not in own:
            (folder / item.name).symlink_to(item)
    (folder / "values").mkdir()
    (folder / "stacks").mkdir()
    for file in [*(ROOT / "stacks").glob("Pulumi.*.yaml"), ROOT / "stacks" / "schema.json"]:
        shutil.copyfile(file, folder / "stacks" / file.name)
    (folder / ".venv").mkdir()
    for item in ("bin", "lib", "pyvenv.cfg"):
        (folder / ".venv" / item).symlink_to(Path(sys.prefix, item))
    text = (ROOT / "pyproject.toml").read_bytes()
    for name in ("requirements", "requirements-dev"):  # as scripts/setup leaves it
        lock = (ROOT / f"{name}.lock").read_bytes()
        (folder / ".venv" / f".{name}-{sha256(lock + text).hexdigest()[:16]}").touch()


def _write_results(folder: Path) -> None:
    """Write smoke runs of two stacks, results of two deployments, and rows of servers measured alone."""
    for name, (time, ttft) in product(("dev", "S"), (("20260301T120000Z", 500.0), ("20260302T120000Z", 510.0))):
        row = _row("end-to-end", ttft_ms=Quantiles(mean=ttft / 2, p95=ttft), topology="8p-tp1-4d-tp2", gpus_counted=16)
        origin = Origin(tool="llmd-oke smoke", config_hash="3f9a01c2")
        write_rows([row.model_copy(update={"origin": origin})], folder / "reports" / name / time / "rows.jsonl")
    for name, topology in (("agg", "agg-tp2-8r"), ("disagg", "8p-tp1-4d-tp2")):
        row = _row("end-to-end", ttft_ms=Quantiles(mean=300.0, p95=500.0), topology=topology, gpus_counted=16)
        write_rows([row], folder / "results" / name / "rows.jsonl")
    as_guide = {"input_tokens": 5151, "output_tokens": 281, "concurrency": None, "arrival": "constant"}
    mine = _row("end-to-end", **as_guide, offered_requests_per_s=45.0, topology="8p-tp1-4d-tp2", gpus_counted=16)
    write_rows([mine], folder / "reports" / "mine" / "rows.jsonl")
    shutil.copytree(folder / "results" / "disagg", folder / "reports" / "S-experiment" / "guide" / "latest")
    prefill = [_prefill(size, tokens) for size, tokens in product((1, 2), (1024, 4096, 8192))]
    decode = [_decode(*row) for row in product((1, 2), (4, 32, 128), (1024, 8192))]
    for file in ("rows.jsonl", "reports/S/tuning/rows.jsonl"):
        write_rows([*prefill, *decode], folder / file)
    for name, rows in (("prefill", prefill), ("decode", decode)):
        write_rows([row.model_copy(update={"gpu": "H200"}) for row in rows], folder / name / "rows.jsonl")
        write_rows(rows, folder / "results" / name / "rows.jsonl")


def _row(subject: str, **fields: object) -> Row:
    known: dict[str, object] = {
        "subject": subject,
        "basis": Basis.MEASURED,
        "model": "gpt-oss-120b",
        "gpu": "MI300X",
        "origin": Origin(tool="test"),
        "input_tokens": 4096,
        "output_tokens": 256,
        "concurrency": 8,
        "output_tokens_per_s": 800.0,
        "requests": 100,
    }
    return Row.model_validate({**known, **fields})


def _prefill(gpus: int, tokens: int) -> Row:
    """Row of a server that computes prompts alone, as fast as the kit's latency figures say."""
    first_s = _latency().prefill_s(tokens, 0, gpus)
    lengths = {"input_tokens": tokens, "output_tokens": 1, "concurrency": 1, "output_tokens_per_s": 1 / first_s}
    size = {"tensor_parallel_size": gpus, "gpus_counted": gpus}
    return _row(
        "prefill", ttft_ms=Quantiles(mean=1000 * first_s), input_tokens_per_s=tokens / first_s, **lengths, **size
    )


def _decode(gpus: int, users: int, tokens: int) -> Row:
    """Row of a server that decodes alone, as fast as the kit's latency figures say."""
    step_s = _latency().decode_step_s(users, tokens + 128, gpus)
    lengths = {"input_tokens": tokens, "output_tokens": 256, "concurrency": users}
    size = {"tensor_parallel_size": gpus, "gpus_counted": gpus, "requests": 10 * users}
    return _row("decode", tpot_ms=Quantiles(mean=1000 * step_s), output_tokens_per_s=users / step_s, **lengths, **size)


@cache
def _latency() -> LatencyModel:
    model, shape = known_model("gpt-oss-120b"), known_shape("BM.GPU.MI300X.8")
    return latency_model_of(known_figures(model, shape.gpu), model, shape)
