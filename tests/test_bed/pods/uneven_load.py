"""A long answer for each server but one, one after the other, and short answers while the long ones are under way.

Run in the local cluster: `uneven_load.py HOST:PORT MODEL SERVER...`. Prints, for each server, the requests that it runs
after the long ones have begun (`running`), the short ones that it has answered (`answered`), and the requests that it
runs after those (`still`).
"""

import http.client
import json
import sys
import threading
import time

from server_metrics import metric_sum

SHORT_ANSWERS, SHORT_TOKENS, LONG_TOKENS = 8, 4, 36_000
APART_S = 0.5
"""Time between requests, in which an endpoint picker reads its servers ten times."""


def ask(address: str, model: str, tokens: int) -> None:
    body = json.dumps({"model": model, "prompt": "A question.", "max_tokens": tokens, "ignore_eos": True})
    connection = http.client.HTTPConnection(address, timeout=600)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()


def counted(servers: tuple[str, ...], metric: str) -> list[int]:
    """Return a metric of each server."""
    return [metric_sum([f"{server}:8000"], f"vllm:{metric}") for server in servers]


def main(address: str, model: str, *servers: str) -> None:
    for _ in servers[1:]:
        threading.Thread(target=ask, args=(address, model, LONG_TOKENS), daemon=True).start()
        time.sleep(APART_S)
    running = counted(servers, "num_requests_running")
    for _ in range(SHORT_ANSWERS):
        ask(address, model, SHORT_TOKENS)
        time.sleep(APART_S)
    answered, still = counted(servers, "request_success_total"), counted(servers, "num_requests_running")
    print(json.dumps({"running": running, "answered": answered, "still": still}))


if __name__ == "__main__":
    main(*sys.argv[1:])
