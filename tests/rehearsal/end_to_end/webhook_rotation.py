"""Certificates of the webhooks of LeaderWorkerSets' controller that are made anew: first the server's alone, then that
of its authority too. A set is offered to the webhooks ten times a second meanwhile, as a dry run, and made at the end.

Run inside a rehearsal's cluster: webhook_rotation.py IMAGE. Prints as JSON for each rotation how often the set was
admitted and refused, and the seconds from the first refusal to the first admission after the last one.
"""

import json
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from lightkube import ApiError, Client, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Secret

NAMESPACE, SECRET, NAME = "lws-system", "lws-webhook-server-cert", "offered"
ADDRESS = (f"lws-webhook-service.{NAMESPACE}.svc.cluster.local", 443)
SERVER, AUTHORITY = ("tls.crt", "tls.key"), ("ca.crt", "ca.key")
PERIOD_S = 0.1
CALM_S = 2.0
LIMIT_S = 240
Set = create_namespaced_resource("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")


def connected() -> Client:
    return Client(KubeConfig.from_env(), namespace="llm-d", trust_env=False)


def set_of(image: str) -> Any:
    container = {"name": "idle", "image": image, "command": ["python3", "-c", "import signal; signal.pause()"]}
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": {"containers": [container]}}}}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return Set.from_dict({**kind, "metadata": {"name": NAME}, "spec": spec})


class Offers(threading.Thread):
    """A set that is offered to the webhooks until the program ends, and when it was admitted."""

    def __init__(self, image: str) -> None:
        super().__init__(daemon=True)
        self.offered = set_of(image)
        self.answers: list[tuple[float, bool]] = []

    def run(self) -> None:
        client = connected()
        while True:
            try:
                client.create(self.offered, dry_run=True)
            except ApiError:
                self.answers.append((time.monotonic(), False))
            else:
                self.answers.append((time.monotonic(), True))
            time.sleep(PERIOD_S)

    def are_calm(self, since_s: float) -> bool:
        """Tell whether all answers of the last seconds were admissions, and there were some."""
        begin_s = max(since_s, time.monotonic() - CALM_S)
        recent = [admitted for at_s, admitted in self.answers if at_s > begin_s]
        return time.monotonic() > since_s + CALM_S and len(recent) > 1 and all(recent)


def served() -> str:
    """Return the certificate that new connections get."""
    return ssl.get_server_certificate(ADDRESS, timeout=10)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {LIMIT_S} s")
        time.sleep(PERIOD_S)


def rotate(client: Client, offers: Offers, *keys: str) -> dict[str, Any]:
    """Have the controller make what its Secret lacks anew; return what came of the offers meanwhile."""
    before, began_s = served(), time.monotonic()
    client.patch(Secret, SECRET, {"data": dict.fromkeys(keys)}, namespace=NAMESPACE)
    until(lambda: served() != before)
    served_s = time.monotonic()
    until(lambda: offers.are_calm(served_s))
    answers = [(at_s, admitted) for at_s, admitted in offers.answers if at_s > began_s]
    refused = [at_s for at_s, admitted in answers if not admitted]
    after = next((at_s for at_s, _ in answers if refused and at_s > refused[-1]), 0.0)
    counts = {"admitted": len(answers) - len(refused), "refused": len(refused)}
    return {**counts, "refused_for_s": round(after - refused[0], 1) if refused else 0.0}


def make(client: Client, offers: Offers) -> None:
    """Make the set and wait until its pod is ready: the controller's own requests pass the webhooks too."""
    client.create(offers.offered)
    until(lambda: (client.get(Set, NAME).get("status") or {}).get("readyReplicas") == 1)
    client.delete(Set, NAME)


def main(image: str) -> None:
    client, offers = connected(), Offers(image)
    offers.start()
    until(lambda: offers.are_calm(0.0))
    told = {"server": rotate(client, offers, *SERVER), "authority": rotate(client, offers, *SERVER, *AUTHORITY)}
    make(client, offers)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
