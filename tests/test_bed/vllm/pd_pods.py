"""Two pods in namespaces of their own: prefill, and decode behind the real routing sidecar. Prints what a client saw.

Run as the first process of new network, mount and process namespaces; everything ends with it.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIMULATOR = "http://127.0.0.1:9000"
PREFILL, DECODE, FAILING = "10.244.0.2", "10.244.0.3", "10.244.0.4"
FAULT = {"LLMD_OKE_REHEARSED_FAILED_PREFILL_PERCENT": "100"}
TIME_SCALE = 0.2
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
PROMPT = "All happy families are alike. " * 100


def command(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=30)


def create_pods() -> None:
    """A bridge and three pods; names of network namespaces live on a private tmpfs."""
    command("mount", "-t", "tmpfs", "tmpfs", "/run")
    Path("/run/netns").mkdir()
    command("ip", "link", "set", "lo", "up")
    command("ip", "link", "add", "pods0", "type", "bridge")
    command("ip", "address", "add", "10.244.0.1/16", "dev", "pods0")
    command("ip", "link", "set", "pods0", "up")
    for name, address in (("prefill", PREFILL), ("decode", DECODE), ("failing", FAILING)):
        command("ip", "netns", "add", name)
        command("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        command("ip", "link", "set", name, "master", "pods0", "up")
        command("ip", "-n", name, "link", "set", "lo", "up")
        command("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0")
        command("ip", "-n", name, "link", "set", "eth0", "up")


def call(
    url: str, body: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None, timeout_s: float = 60
) -> tuple[int, str]:
    """Status and text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_for(url: str, limit_s: float = 30) -> None:
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            call(url)
            return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def start_server(name: str, address: str, *flags: str, **fault: str) -> None:
    argv = ["vllm", "serve", "openai/gpt-oss-120b", "--port", "8200", "--kv-transfer-config", NIXL, *flags]
    environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": address, **fault}
    body = {"id": name, "netns": f"/run/netns/{name}", "argv": argv, "env": environment, "image": "vllm:v1"}
    assert call(f"{SIMULATOR}/servers", body)[0] == 201


def metrics(url: str) -> dict[str, float]:
    """Samples by name, without labels; buckets left out."""
    lines = [line for line in call(url)[1].splitlines() if line and not line.startswith("#") and "_bucket" not in line]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


def timed(prefiller: str | None, path: str, body: Mapping[str, object]) -> dict[str, Any]:
    """Status, text and model seconds of an answer."""
    headers = {} if prefiller is None else {"x-prefiller-host-port": prefiller}
    start_s = time.monotonic()
    status, text = call(f"http://{DECODE}:8000{path}", body, headers)
    return {"status": status, "text": text, "model_s": (time.monotonic() - start_s) / TIME_SCALE}


def observe() -> dict[str, Any]:
    """Return what a client sees, request by request, with the servers' metrics after each."""
    prefiller = f"{PREFILL}:8200"
    streamed = {"prompt": PROMPT, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
    requests = {
        "streamed": (prefiller, "/v1/completions", streamed),
        "chat": (prefiller, "/v1/chat/completions", chat),
        "aggregated": (None, "/v1/completions", {"prompt": "short", "max_tokens": 3}),
        "too_long": (prefiller, "/v1/completions", {"prompt": [1] * 200_000, "max_tokens": 3}),
        "no_prefiller": (f"{PREFILL}:8299", "/v1/completions", {"prompt": "other", "max_tokens": 3}),
    }
    seen: dict[str, Any] = {}
    for name, request in requests.items():
        seen[name] = timed(*request)
        seen[name]["prefill"] = metrics(f"http://{PREFILL}:8200/metrics")
        seen[name]["decode"] = metrics(f"http://{DECODE}:8000/metrics")
    return seen


def count() -> dict[str, object]:
    """Return what clients and counters say of prompts of which some are prefilled and others can't be."""
    before = counters()
    prefillers = [f"{PREFILL}:8200", f"{FAILING}:8200", f"{PREFILL}:8299", None]
    bodies = [{"prompt": f"{number} {PROMPT}", "max_tokens": 3} for number in range(3 * len(prefillers))]
    hosts = [prefiller for prefiller in prefillers for _ in range(3)]
    statuses = [
        timed(*request)["status"] for request in zip(hosts, ["/v1/completions"] * len(bodies), bodies, strict=True)
    ]
    return {"statuses": statuses, "before": before, "after": counters()}


def counters() -> dict[str, str]:
    """The servers' own, as text."""
    urls = {"prefill": f"{PREFILL}:8200", "failing": f"{FAILING}:8200", "decode": f"{DECODE}:8200"}
    return {name: call(f"http://{url}/metrics")[1] for name, url in urls.items()}


def main() -> None:
    sidecar, log, flags = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    create_pods()
    simulator = [sys.executable, "-m", "llmd_rehearsal.vllm", "--listen", "127.0.0.1:9000"]
    simulator += ["--time-scale", str(TIME_SCALE), "--startup-scale", "0.001"]
    proxy = ["ip", "netns", "exec", "decode", sidecar, "--port=8000", "--vllm-port=8200", "--kv-connector=nixlv2"]
    with log.open("w") as output:
        subprocess.Popen(simulator, stdout=output, stderr=output)
        subprocess.Popen([*proxy, "--secure-proxy=false", *flags], stdout=output, stderr=output)
        wait_for(f"{SIMULATOR}/healthz")
        start_server("prefill", PREFILL)
        start_server("decode", DECODE, "--tensor-parallel-size", "2")
        start_server("failing", FAILING, **FAULT)
        for server in (f"{PREFILL}:8200", f"{FAILING}:8200", f"{DECODE}:8200", f"{DECODE}:8000"):
            wait_for(f"http://{server}/health")
        print(json.dumps({**observe(), "counted": count()}))


if __name__ == "__main__":
    main()
