"""Questions to a model and its LoRA adapters, through the front door.

Run inside a rehearsal's cluster: asked_adapters.py ADDRESS MODEL NAME... Prints what each is answered, what the front
door lists, and how many events a stream of tokens has.
"""

import json
import sys
from typing import Any

import httpx2

PROMPT, TOKENS = "SELECT name FROM customers WHERE " * 20, 32


def asked(client: httpx2.Client, name: str) -> dict[str, Any]:
    """Return the status of a request for a model of that name, the name that its answer says, and the text."""
    body = {"model": name, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body)
    said = answer.json() if answer.status_code == 200 else {}
    texts = [choice["text"] for choice in said.get("choices", [])]
    return {"status": answer.status_code, "model": said.get("model"), "text": "".join(texts)}


def events(client: httpx2.Client, name: str) -> int:
    """Count the events with text of a stream."""
    body = {"model": name, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    lines = client.post("/v1/completions", json=body).text.splitlines()
    documents = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return sum(bool(choice["text"]) for document in documents for choice in document["choices"])


def main(address: str, base: str, *names: str) -> None:
    with httpx2.Client(base_url=address, timeout=60) as client:
        answers = {name: asked(client, name) for name in (base, *names)}
        again = {name: asked(client, name)["text"] for name in (base, *names)}
        listed = sorted(item["id"] for item in client.get("/v1/models").json()["data"])
        print(json.dumps({"answers": answers, "again": again, "listed": listed, "events": events(client, base)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
