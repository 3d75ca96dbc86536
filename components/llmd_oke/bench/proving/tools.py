"""The load generators that can be compared: how each is called, and where it writes its times to first token.

Other tools are used where they are installed: found on PATH, or named by `AIPERF` and `GUIDELLM`.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_oke.bench.workload.prompts import WORDS


@dataclass(frozen=True)
class Load:
    """A constant rate against the exact server; `folder` is the tool's to write into."""

    url: str
    requests_per_s: float
    duration_s: float
    folder: Path

    @property
    def requests(self) -> int:
        """How many."""
        return round(self.requests_per_s * self.duration_s)


@dataclass(frozen=True)
class Ttft:
    """What a tool says of the time to first token."""

    mean_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Tool:
    """A load generator: its command, and how its result is read from its folder and its standard output."""

    name: str
    command: Callable[[Load], Sequence[str]]
    read: Callable[[Path, str], Ttft]


def _our_command(load: Load) -> Sequence[str]:
    module = "llmd_oke.bench.proving.ours"
    return [sys.executable, "-m", module, load.url, str(load.requests_per_s), str(load.duration_s)]


def _read_ours(_: Path, output: str) -> Ttft:
    found: Mapping[str, float] = json.loads(output)
    return Ttft(found["mean_ms"], found["p99_ms"])


def _aiperf_command(program: str) -> Callable[[Load], Sequence[str]]:
    def command(load: Load) -> Sequence[str]:
        return [
            *(program, "profile", "--model", "model", "--url", load.url, "--endpoint-type", "completions"),
            *("--streaming", "--request-rate", str(load.requests_per_s), "--request-rate-mode", "constant"),
            *("--request-count", str(load.requests), "--isl", "128", "--isl-stddev", "0", "--osl", "50"),
            *("--tokenizer", str(_tokenizer(load.folder)), "--use-server-token-count", "--no-gpu-telemetry"),
            *("--no-server-metrics", "--ui", "none", "--artifact-dir", str(load.folder)),
        ]

    return command


def _read_aiperf(folder: Path, _: str) -> Ttft:
    found: Mapping[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())
    ttft = found["time_to_first_token"]
    return Ttft(ttft["avg"], ttft["p99"])


def _guidellm_command(program: str) -> Callable[[Load], Sequence[str]]:
    def command(load: Load) -> Sequence[str]:
        return [
            *(program, "run", "--backend", f"kind=openai_http,target={load.url},model=model"),
            *("--profile", f"kind=constant,rate={load.requests_per_s:g}"),
            *("--constraint", f"kind=max_requests,count={load.requests}"),
            *("--data", "kind=synthetic_text,prompt_tokens=128,output_tokens=50"),
            *("--tokenizer", f"kind=huggingface_auto,model={_tokenizer(load.folder)}"),
            *("--output", f"kind=json,path={load.folder / 'guidellm.json'}", "--disable-console"),
        ]

    return command


def _read_guidellm(folder: Path, _: str) -> Ttft:
    found: Mapping[str, Any] = json.loads((folder / "guidellm.json").read_text())
    ttft = found["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]
    return Ttft(ttft["mean"], ttft["percentiles"]["p99"])


def _tokenizer(folder: Path) -> Path:
    """A tokenizer of whole words, so that none has to be downloaded."""
    place = folder / "tokenizer"
    place.mkdir(exist_ok=True)
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[EOS]", *WORDS])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    rest: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": list[str](),
        **rest,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": model,
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    files: dict[str, Any] = {"tokenizer": whole, "tokenizer_config": settings, "config": {"model_type": "gpt2"}}
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    return place


OURS = Tool("llmd-oke", _our_command, _read_ours)


def installed() -> list[Tool]:
    """Ours, and those of the others that are there."""
    aiperf = os.environ.get("AIPERF") or shutil.which("aiperf")
    guidellm = os.environ.get("GUIDELLM") or shutil.which("guidellm")
    others = [
        Tool("aiperf", _aiperf_command(aiperf), _read_aiperf) if aiperf else None,
        Tool("guidellm", _guidellm_command(guidellm), _read_guidellm) if guidellm else None,
    ]
    return [OURS, *(tool for tool in others if tool)]
