"""Clients that ask for more than servers can compute, whose requests wait in the endpoint picker or in the servers.

Run in the local cluster: `queued_load.py CASE ROUTER MODEL SERVER...`, where ROUTER is the address of a router, which
has requests at port 80 and the endpoint picker's metrics at port 9090, and CASE is `full`, `priorities` or `turns`.
Servers compute two requests each at a time. Prints the outcomes of the requests in their order.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import TypedDict

from server_metrics import metric_sum

AT_A_TIME = 2
BAND_REQUESTS, REFUSED = 5, 7
"""Requests that wait in the band of the low priority, and those beyond its limit."""
EACH_PRIORITY, LOUD, QUIET = 6, 24, 8
"""Waiting requests of each of two priorities, and of two clients with one priority."""
LONG_TOKENS, MIDDLE_TOKENS, SHORT_TOKENS = 36_000, 4_000, 40
LIMIT_S = 50.0
BUSY, CHAT, CRAWLER = ("busy", "100"), ("chat", "100"), ("crawler", "-10")
"""Clients with their priorities, as a front door names them to a router."""


class Outcome(TypedDict):
    """Outcome of a request: its client, status, the reason of a refusal, and seconds until then."""

    client: str
    status: int
    reason: str | None
    seconds: float


class Load:
    """Requests of clients to one router."""

    def __init__(self, router: str, model: str, servers: tuple[str, ...]) -> None:
        self.router, self.model, self.servers = router, model, servers
        self.outcomes: list[Outcome] = []
        self.most_waiting = 0

    def start(self, client: tuple[str, str], tokens: int, count: int = 1) -> None:
        """Start requests of a client at once."""
        for _ in range(count):
            threading.Thread(target=self._ask, args=(client, tokens), daemon=True).start()

    def _ask(self, client: tuple[str, str], tokens: int) -> None:
        name, priority = client
        body = json.dumps({"model": self.model, "prompt": "A question.", "max_tokens": tokens, "ignore_eos": True})
        headers = {"Content-Type": "application/json", "x-llmd-oke-client": name}
        if priority:
            headers["x-llmd-oke-priority"] = priority
        begun_s = time.monotonic()
        connection = http.client.HTTPConnection(self.router, 80, timeout=600)
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        seconds = round(time.monotonic() - begun_s, 2)
        reason = answer.getheader("x-llm-d-request-dropped-reason")
        self.outcomes.append({"client": name, "status": answer.status, "reason": reason, "seconds": seconds})

    def fill(self, tokens: int) -> None:
        """Give servers as many requests as they compute at a time, each once the one before is there."""
        for index in range(AT_A_TIME * len(self.servers)):
            self.start(BUSY, tokens)
            self.wait(f"{index + 1} requests at the servers", lambda sent=index + 1: self.at_servers() >= sent)

    def at_servers(self) -> int:
        """Return the number of requests that servers compute or have waiting."""
        return self._of_servers("num_requests_running") + self._of_servers("num_requests_waiting")

    def queued(self) -> int:
        """Return the number of requests that wait in the endpoint picker."""
        return metric_sum([f"{self.router}:9090"], "llm_d_epp_flow_control_queue_size")

    def computed(self) -> int:
        """Return the number of requests that servers have answered."""
        return self._of_servers("request_success_total")

    def _of_servers(self, metric: str) -> int:
        return metric_sum([f"{server}:8000" for server in self.servers], f"vllm:{metric}")

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds, at most LIMIT_S seconds, and note how many requests wait in servers."""
        end_s = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end_s, f"no {what} within {LIMIT_S:.0f} s: {self.outcomes}"
            self.most_waiting = max(self.most_waiting, self._of_servers("num_requests_waiting"))
            time.sleep(0.02)

    def wait_for_outcomes(self, count: int) -> None:
        self.wait(f"{count} outcomes", lambda: len(self.outcomes) >= count)

    def wait_in_line(self, count: int) -> None:
        """Wait until so many requests wait, in the endpoint picker or in servers, beside those under way."""
        full = AT_A_TIME * len(self.servers)
        self.wait(f"{count} waiting requests", lambda: self.queued() + self.at_servers() - full >= count)


def full(load: Load) -> None:
    """More requests of a low priority than its band holds, while servers are busy for longer than requests may wait."""
    load.fill(LONG_TOKENS)
    load.start(CRAWLER, SHORT_TOKENS, BAND_REQUESTS + REFUSED)
    load.wait_for_outcomes(BAND_REQUESTS + REFUSED)


def priorities(load: Load) -> None:
    """Requests of a low priority, and then as many of a high one."""
    load.fill(MIDDLE_TOKENS)
    load.start(CRAWLER, SHORT_TOKENS, EACH_PRIORITY)
    load.wait_in_line(EACH_PRIORITY)
    load.start(CHAT, SHORT_TOKENS, EACH_PRIORITY)
    load.wait_for_outcomes(AT_A_TIME * len(load.servers) + 2 * EACH_PRIORITY)


def turns(load: Load) -> None:
    """Many requests of one client, and then a few of another one with the same priority."""
    load.fill(MIDDLE_TOKENS)
    load.start(("loud", ""), SHORT_TOKENS, LOUD)
    load.wait_in_line(LOUD)
    load.start(("quiet", ""), SHORT_TOKENS, QUIET)
    load.wait_for_outcomes(AT_A_TIME * len(load.servers) + LOUD + QUIET)


def main(case: str, router: str, model: str, *servers: str) -> None:
    load = Load(router, model, servers)
    before = load.computed()
    {"full": full, "priorities": priorities, "turns": turns}[case](load)
    at_servers = load.at_servers() + load.computed() - before
    print(json.dumps({"outcomes": load.outcomes, "at_servers": at_servers, "most_waiting": load.most_waiting}))


if __name__ == "__main__":
    main(*sys.argv[1:])
