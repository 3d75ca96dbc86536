"""How pods are replaced where GPUs are scarce, and how long that may take."""

from collections import Counter
from collections.abc import Sequence

from llmd_oke.planning.plan import Node, Rollout

DRAIN_S = 15
"""How long a pod that ends still takes requests, until no router sends it any (llm-d's graceful-shutdown component)."""

TERMINATION_GRACE_S = 90
"""llm-d guides: pods get 90 s, `DRAIN_S` and vLLM's own `--shutdown-timeout` of 60 s are within them."""

SCHEDULING_S = 600
"""Time to schedule pods and pull a large image; ours."""


def sure_room(spare: int, size: int, mixed_nodes: int) -> int:
    """How many servers of a size find room among spare GPUs (or virtual functions), wherever Kubernetes put the others.

    Only nodes with servers of other sizes can have room that is too small, at most `size - 1` on each of
    `mixed_nodes`; all other spare GPUs lie together.
    """
    at_worst = -((mixed_nodes * (size - 1) - spare) // size)
    return max(0, min(spare // size, at_worst))


def room_beside(nodes: Sequence[Node]) -> bool:
    """Whether all servers are sure to find room a second time, wherever Kubernetes put those that are there.

    Larger servers come first, as they do by their priority; servers with virtual functions have these for each GPU.
    """
    servers = [server for node in nodes for server in node.servers]
    gpus = sum(node.free_gpus for node in nodes)
    functions = sum(node.free_virtual_functions for node in nodes)
    connected = {server.virtual_functions for server in servers} - {0}
    for size, number in sorted(Counter(server.gpus for server in servers).items(), reverse=True):
        mixed = min(len(nodes), 2 * sum(bool(server.gpus % size) for server in servers))
        spare = min(gpus, functions) if connected else gpus
        if sure_room(spare, size, mixed) < number:
            return False
        gpus, functions = gpus - size * number, functions - size * number
    return True


def rollout(replicas: int, room: int) -> Rollout:
    """Surge pods where `room` for some is sure, otherwise one pod at a time goes before its successor comes."""
    surge = min(replicas, room)
    return Rollout(max_surge=surge, max_unavailable=0) if surge else Rollout(max_surge=0, max_unavailable=1)


def create_timeout_s(startup_budget_s: int, download_s: int = 0) -> int:
    """All pods start at the same time, so one start-up budget and the time to schedule and pull; `download_s` is what
    weights may take on nodes that lack them.
    """
    return startup_budget_s + SCHEDULING_S + download_s


def update_timeout_s(startup_budget_s: int, replicas: int, rollout: Rollout, download_s: int = 0) -> int:
    """Pods are replaced in waves of surge plus unavailable pods, each of which ends old pods and starts new ones. Most
    take the place of an old one, on a node with the weights, so that `download_s` counts once.
    """
    waves = -(-replicas // (rollout.max_surge + rollout.max_unavailable))
    return waves * (startup_budget_s + TERMINATION_GRACE_S) + SCHEDULING_S + download_s
