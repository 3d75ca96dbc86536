"""Steady load on a router, half way through which an endpoint picker is killed. Prints what became of each request.

Run in the local cluster: `router_load.py HOST:PORT POD SECONDS`; POD is that of the picker.
"""

import http.client
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TypedDict

PER_S = 10
LIMIT_S = 40
BODY = json.dumps({"model": "m", "prompt": "short", "stream": True})


class Request(TypedDict, total=False):
    """Outcome of a request, with moments of the monotonic clock."""

    begun_s: float
    ended_s: float
    status: int
    whole: bool
    error: str


def ask(address: str, request: Request) -> None:
    """One streamed request, on a connection of its own."""
    request["begun_s"] = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v1/completions", BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        request["status"] = answer.status
        request["whole"] = text.endswith(b"data: [DONE]\n\n")
    except (OSError, http.client.HTTPException) as error:
        request["status"], request["whole"], request["error"] = 0, False, repr(error)
    finally:
        connection.close()
        request["ended_s"] = time.monotonic()


def kill_picker(pod: str) -> float:
    """End the picker of a pod without a warning."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"/app/epp" and f"POD_NAME={pod}".encode() in variables:
            os.kill(int(folder.name), signal.SIGKILL)
            return time.monotonic()
    raise SystemExit(f"there is no picker of {pod}")


def main() -> None:
    address, pod, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    requests: list[Request] = []
    threads: list[threading.Thread] = []
    killed_s: float | None = None
    begun_s = time.monotonic()
    for index in range(int(PER_S * seconds)):
        time.sleep(max(0.0, begun_s + index / PER_S - time.monotonic()))
        if killed_s is None and time.monotonic() - begun_s > seconds / 2:
            killed_s = kill_picker(pod)
        requests.append({})
        threads.append(threading.Thread(target=ask, args=(address, requests[-1])))
        threads[-1].start()
    for thread in threads:
        thread.join()
    print(json.dumps({"killed_s": killed_s, "asked": requests}))


if __name__ == "__main__":
    main()
