"""Planted secrets are in none of the files and texts of a benchmark, nor in the arguments of its processes, even where
a server answers with the headers that it was sent."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.records.lines import read_lines

TOKEN = "planted-bench-token-0123456789"
PLANTED = {
    "LLMD_OKE_BENCH_TOKEN": TOKEN,
    "HF_TOKEN": "hf_planted_token_0123456789",
    "MODEL_SOURCE_URL": "https://o/p/planted-source-link/n/ns/b/models/o/",
    "VLLM_API_KEY": "planted-api-key-0123456789",
    "PULUMI_ACCESS_TOKEN": "pul-planted-0123456789",
    "PULUMI_CONFIG_PASSPHRASE": "planted-passphrase-0123456789",
}
EVENTS = (
    b'data: {"choices":[{"text":" tok"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)


def arguments() -> str:
    """The arguments of all processes of this machine."""
    texts: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            texts.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(texts)


class Echoing(BaseHTTPRequestHandler):
    """Answers every other request with an error that repeats its headers, cut at any length, in a body or an event."""

    seen: list[str]
    requests = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).requests += 1
        number = type(self).requests
        self.seen.append(arguments())
        headers = str(dict(self.headers))
        padding = "x" * (number * 37 % 400)
        if number % 3 == 0:
            self.answer(500, f"{padding} {headers}".encode())
        elif number % 3 == 1:
            self.answer(200, b"data: " + json.dumps({"error": {"message": f"{padding} {headers}"}}).encode() + b"\n\n")
        else:
            self.answer(200, EVENTS)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Echoing.seen, Echoing.requests = [], 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Echoing) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.mark.parametrize("tail", [(), ("--json",)])
def test_no_file_text_or_argument_of_a_benchmark_has_a_planted_secret(
    server: ThreadingHTTPServer, tmp_path: Path, tail: tuple[str, ...]
):
    files = ["--output", str(tmp_path / "requests.jsonl"), "--rows", str(tmp_path / "rows.jsonl")]
    words = ["--model", "m", "--shape", "closed:2", "--requests", "24", "--processes", "2", "--rest", "0"]
    sizes = ["--input-tokens", "8", "--output-tokens", "2", "--gpu", "MI300X", "--gpus", "8"]
    url = f"http://127.0.0.1:{server.server_port}"
    ran = subprocess.run(
        [sys.executable, "-m", "llmd_oke", "bench", "--url", url, *words, *sizes, *files, *tail],
        env={**os.environ, **PLANTED},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    errors = [record.error for _, record in read_lines((tmp_path / "requests.jsonl").read_text().splitlines())]
    assert sum("[credential]" in (error or "") for error in errors) > 4, ran.stderr
    written = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    for place in (*written, ran.stdout, ran.stderr, *Echoing.seen):
        for text in (*PLANTED.values(), TOKEN[:14]):
            assert text not in place


@pytest.mark.parametrize("cut", range(12, len(TOKEN) + 1, 6))
def test_a_credential_is_known_by_its_beginning(cut: int):
    target = Target("http://x", "m", {"Authorization": f"Bearer {TOKEN}"})
    assert target.without_credentials(f"{{'Authorization': 'Bearer {TOKEN[:cut]}'}}") == (
        "{'Authorization': 'Bearer [credential]'}"
    )
    assert target.without_credentials("nothing of it") == "nothing of it"
