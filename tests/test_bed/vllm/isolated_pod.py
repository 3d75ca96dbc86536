"""A server's pod, as rendered, with a cache that the pre-warm Job filled, where it reaches nothing. Prints what it did.

Run as the first process of new network, mount and process namespaces, with a JSON file: the containers of the Job and
of the pod, its volumes, the program, and a folder for the rest. The Job reaches stand-ins of the hosts outside; the pod
has a loopback device and nothing else. Everything ends with it.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from llmd_rehearsal import control_plane
from llmd_rehearsal.model_sources import PORT, source_hosts
from llmd_rehearsal.pods import containers, images
from llmd_rehearsal.pods.containers import Mount, Sandbox
from llmd_rehearsal.pods.environment import resolve_argv

SIMULATOR = "http://127.0.0.1:9000"
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
calls: list[str] = []
"""Our own, each of which begins a connection."""


Container: TypeAlias = Mapping[str, Any]
"""A container of a manifest."""


class PodPlan(TypedDict):
    """The file: the Job's containers and the server's, paths on this machine, and files that one server each lacks."""

    prewarm: list[Container]
    server: Container
    volumes: dict[str, str]
    cache: str
    folder: str
    program: str
    rehearsed: dict[str, str]
    missing: list[str]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, check=True, timeout=60, capture_output=True, text=True)


def serve_model_sources(folder: Path) -> Path:
    """Hosts outside the cluster as rehearsals have them, on the loopback of the namespace that is not alone; gives the
    certificate of their authority.
    """
    keys = control_plane.prepare_pki(folder / "pki", source_hosts().hosts)
    argv = [sys.executable, "-m", "llmd_rehearsal.model_server", "--address", "127.0.0.1"]
    files = ["--certificate", str(keys.outside.certificate), "--key", str(keys.outside.key)]
    with (folder / "outside.log").open("w") as output:
        subprocess.Popen([*argv, *files], stdout=output, stderr=output)
    while True:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            return keys.authority.certificate
        except OSError:
            time.sleep(0.02)


def variables(container: Container) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container.get("env", ()) if "value" in item}


def prewarm(plan: PodPlan, network: str, authority: Path) -> list[dict[str, object]]:
    """Run the containers that fill the cache in a namespace, in turn; return their exit codes and last lines."""
    return [run_to_end(container, plan, network, authority) for container in plan["prewarm"]]


def run_to_end(container: Container, plan: PodPlan, network: str, authority: Path) -> dict[str, object]:
    folder = Path(plan["folder"])
    python = images.prepare(folder, authority)
    hosts = folder / "hosts"
    hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", *source_hosts().hosts)))
    mounts = [
        *python.mounts(packages=False),
        Mount(hosts, "/etc/hosts", read_only=True),
        Mount(Path(plan["cache"]), "/model-cache"),
        Mount(Path(plan["program"]), "/opt/llmd-oke/prewarm", read_only=True),
    ]
    sandbox = Sandbox(Path(network), "pod", mounts, container["workingDir"])
    argv = python.argv([*container["command"], *container["args"]])
    own = python.variables({**variables(container), **plan["rehearsed"]})
    process = subprocess.run(
        containers.command(sandbox, argv), env=own, capture_output=True, text=True, timeout=60, check=False
    )
    return {"code": process.returncode, "said": (process.stdout + process.stderr).strip().splitlines()[-1]}


def call(url: str, body: Mapping[str, object] | None = None) -> Any:
    """The JSON object or the text that is answered."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    calls.append(url)
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        text = answer.read().decode()
    return json.loads(text) if text.startswith("{") else text


def sent() -> dict[str, int]:
    """Return what this namespace has asked of others so far: connections begun, datagrams, packets without a way."""
    lines = [line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines()]
    counters = {
        f"{names[0]}{name}": int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=True)
        for name, value in zip(names[1:], values[1:], strict=True)
    }
    return {name: counters[name] for name in ("Tcp:ActiveOpens", "Udp:OutDatagrams", "Ip:OutNoRoutes")}


def start(plan: PodPlan, name: str) -> dict[str, object]:
    """One server: its state once it is no longer starting, and its log."""
    container = plan["server"]
    environment = variables(container)
    argv = resolve_argv(container["command"], container["args"], (), (), environment)
    mounts = {mount["mountPath"]: plan["volumes"][mount["name"]] for mount in container["volumeMounts"]}
    body = {"id": name, "argv": argv, "env": environment, "image": container["image"], "mounts": mounts}
    call(f"{SIMULATOR}/servers", body)
    while (state := call(f"{SIMULATOR}/servers/{name}"))["state"] == "starting":
        time.sleep(0.02)
    return {**state, "log": call(f"{SIMULATOR}/servers/{name}/log")}


def wait_for(url: str) -> None:
    while True:
        try:
            call(url)
            return
        except OSError:
            time.sleep(0.02)


def alone(plan: PodPlan) -> None:
    """The second half, in the network namespace of the pod that is alone; the simulated vLLM runs in it as a whole."""
    log = Path(plan["folder"]) / "vllm.log"
    argv = [sys.executable, "-m", "llmd_rehearsal.vllm", "--listen", "127.0.0.1:9000", "--startup-scale", "0.001"]
    with log.open("w") as output:
        subprocess.Popen(argv, stdout=output, stderr=output)
    wait_for(f"{SIMULATOR}/healthz")
    seen: dict[str, object] = {"routes": run("ip", "route").stdout, "links": run("ip", "-brief", "link").stdout}
    for path in plan["missing"]:
        (file,) = Path(plan["cache"]).glob(path)
        hidden = file.rename(Path(plan["folder"]) / "hidden")
        seen[path] = start(plan, path.replace("/", "-"))
        hidden.rename(file)
    calls.clear()
    before = sent()
    seen["whole"] = start(plan, "whole")
    seen["chat"] = call("http://127.0.0.1:8000/v1/chat/completions", CHAT)
    after = sent()
    own = {"Tcp:ActiveOpens": len(calls)}
    seen["sent"] = {name: after[name] - before[name] - own.get(name, 0) for name in before}
    print(json.dumps(seen))


def main() -> None:
    plan: PodPlan = json.loads(Path(sys.argv[1]).read_text())
    if sys.argv[2:] == ["alone"]:
        alone(plan)
        return
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    Path("/run/netns").mkdir()
    run("ip", "link", "set", "lo", "up")
    run("ip", "netns", "add", "alone")
    run("ip", "-n", "alone", "link", "set", "lo", "up")
    authority = serve_model_sources(Path(plan["folder"]))
    filled = prewarm(plan, f"/proc/{os.getpid()}/ns/net", authority)
    looked = prewarm(plan, "/run/netns/alone", authority)
    inner = run("ip", "netns", "exec", "alone", sys.executable, __file__, sys.argv[1], "alone")
    print(json.dumps({"filled": filled, "looked": looked, **json.loads(inner.stdout)}))


if __name__ == "__main__":
    main()
