"""Prompts with a few long prefixes, each in its turn. Prints what became of them.

Run in the local cluster: `prefix_load.py HOST:PORT MODEL [SERVER...]`. With servers, each prefix is sent to one of them
first, past the router at HOST:PORT, and then once through it.
"""

import http.client
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from itertools import cycle

PREFIXES, PROMPTS_EACH, USERS, WORDS, TRIES = 12, 8, 4, 200, 3


def main(router: str, model: str, *servers: str) -> None:
    def ask(prompt: str, address: str = router) -> int:
        """Send a prompt, as a front door does: up to three times where it is answered with 503."""
        unavailable = HTTPStatus.SERVICE_UNAVAILABLE
        statuses = (once(prompt, address) for _ in range(TRIES))
        return next((status for status in statuses if status != unavailable), unavailable)

    def once(prompt: str, address: str) -> int:
        connection = http.client.HTTPConnection(address, timeout=60)
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 1})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    beginnings = [f"{'letter' if servers else 'manual'} {prefix:02d} says " * WORDS for prefix in range(PREFIXES)]
    statuses = Counter(ask(text, f"{server}:8000") for text, server in zip(beginnings, cycle(servers), strict=False))
    prompts = [f"{text} question {number}" for number in range(1 if servers else PROMPTS_EACH) for text in beginnings]
    with ThreadPoolExecutor(USERS) as users:
        statuses.update(users.map(ask, prompts))
    print(json.dumps(statuses))


if __name__ == "__main__":
    main(*sys.argv[1:])
