"""Prompts with a few long prefixes, each in its turn. Prints what became of them.

Run in the local cluster: `prefix_load.py HOST:PORT MODEL`.
"""

import http.client
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

PREFIXES, PROMPTS_EACH, USERS, WORDS = 12, 8, 4, 400


def main(address: str, model: str) -> None:
    def ask(prompt: str) -> int:
        connection = http.client.HTTPConnection(address, timeout=60)
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 1})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    beginnings = [f"manual {prefix:02d} says " * WORDS for prefix in range(PREFIXES)]
    prompts = [f"{text} question {number}" for number in range(PROMPTS_EACH) for text in beginnings]
    with ThreadPoolExecutor(USERS) as users:
        print(json.dumps(dict(Counter(users.map(ask, prompts)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
