"""Clients of a front door that ask for more than the servers can answer, each user again as soon as it is answered.

Run inside a rehearsal: client_turns.py ADDRESS KEYS, where KEYS is a JSON file of clients' keys. Prints as JSON, for
each case, what became of each client's requests, and what the servers counted meanwhile.
"""

import http.client
import json
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightkube import Client
from lightkube.resources.core_v1 import Pod

SECONDS, LIMIT_S, HEAD_START_S = 24, 120, 2
MODEL, OUTPUT_TOKENS = "openai/gpt-oss-120b", 64
LARGE_WORDS = 700
"""Of prompts, of 30 bytes or more each: those of 60 users fill a band of one MiB."""
LIFTED = {
    "x-llmd-oke-priority": "100",
    "x-llmd-oke-client": "chat",
    "x-gateway-inference-objective": "{unit}-priority-100",
}
"""What a client says who would have a priority that isn't its own."""


class Users:
    """Users of one client."""

    def __init__(
        self, address: str, key: str, number: int, headers: dict[str, str] | None = None, words: int = 20
    ) -> None:
        self.address, self.key, self.headers, self.words = urlsplit(address), key, headers or {}, words
        self.statuses: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.ended, self.changed = threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.ask, args=(user,), daemon=True) for user in range(number)]

    def ask(self, user: int) -> None:
        count = 0
        while not self.ended.is_set():
            count += 1
            body = json.dumps(
                {"model": MODEL, "prompt": f"{self.key} {user} {count} " * self.words, "max_tokens": OUTPUT_TOKENS}
            )
            own = {"content-type": "application/json", "authorization": f"Bearer {self.key}", **self.headers}
            connection = http.client.HTTPConnection(self.address.netloc, timeout=LIMIT_S)
            try:
                connection.request("POST", "/v1/completions", body, own)
                answer = connection.getresponse()
                text = answer.read()
                status, reason = answer.status, "" if answer.status == 200 else text.decode()[:120]
            except OSError as error:
                status, reason = 0, repr(error)
            finally:
                connection.close()
            with self.changed:
                self.statuses[status] += 1
                if reason:
                    self.reasons[reason] += 1
            if status != 200:
                self.ended.wait(0.5)

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.ended.set()

    def join(self) -> dict[str, Any]:
        for thread in self.threads:
            thread.join(LIMIT_S)
        return {"statuses": dict(self.statuses), "reasons": dict(self.reasons.most_common(3))}


class Servers:
    """Counts of the model's servers."""

    def __init__(self) -> None:
        pods = list(Client().list(Pod, namespace="llm-d", labels={"llm-d.ai/role": None}))
        self.addresses = [pod.status.podIP for pod in pods]
        self.unit = pods[0].metadata.labels["llmd-oke/unit"] if pods[0].metadata.labels else ""

    def sums(self) -> dict[str, float]:
        found = dict.fromkeys(("request_success_total", "num_requests_running", "num_requests_waiting"), 0.0)
        for address in self.addresses:
            text = urllib.request.urlopen(f"http://{address}:8000/metrics", timeout=30).read().decode()
            for line in text.splitlines():
                name = line.partition("{")[0].removeprefix("vllm:")
                if line.startswith("vllm:") and name in found:
                    found[name] += float(line.rpartition(" ")[2])
        return found


def case(servers: Servers, clients: dict[str, Users]) -> dict[str, Any]:
    """Let clients ask, the first with a head start; give what became of it."""
    before, waiting = servers.sums(), 0.0
    first, *others = clients.values()
    first.start()
    time.sleep(HEAD_START_S)
    for users in others:
        users.start()
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        waiting = max(waiting, servers.sums()["num_requests_waiting"])
        time.sleep(0.2)
    for users in clients.values():
        users.stop()
    ended = {name: users.join() for name, users in clients.items()}
    after = servers.sums()
    answered = after["request_success_total"] - before["request_success_total"]
    return {"clients": ended, "answered": answered, "most_waiting": waiting}


def main(address: str, keys: dict[str, str]) -> None:
    servers = Servers()
    lifted = {name: value.format(unit=servers.unit) for name, value in LIFTED.items()}

    def users(client: str, number: int, headers: dict[str, str] | None = None) -> Users:
        return Users(address, keys[client], number, headers)

    by_priority = case(servers, {"chat": users("chat", 120), "crawler": users("crawler", 20, lifted)})
    large = Users(address, keys["bulk"], 60, words=LARGE_WORDS)
    full_band = case(servers, {"chat": users("chat", 120), "bulk": large})
    in_turn = case(servers, {"loud": users("loud", 150), "quiet": users("quiet", 50)})
    print(json.dumps({"by_priority": by_priority, "full_band": full_band, "in_turn": in_turn, "unit": servers.unit}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text())["frontDoorKeys"])
