"""Priority classes by size: a server that needs many GPUs of one node is placed before those that fit anywhere.

Eight small servers spread over two nodes would otherwise keep a large one from starting, although GPUs are enough. It
is placed first among those that wait, and ends none that runs.
"""

_STEP = 1000


def priority(tensor_parallel_size: int) -> int:
    """The priority of servers with that many GPUs. Pods without a class have 0."""
    return _STEP * tensor_parallel_size


def class_name(prefix: str, tensor_parallel_size: int) -> str:
    """The name says the value and the policy, because they can't be changed: another value is another class."""
    return f"{prefix}-non-preempting-{priority(tensor_parallel_size)}"


def priority_class(prefix: str, tensor_parallel_size: int, labels: dict[str, str]) -> dict[str, object]:
    """The class of servers with that many GPUs. Classes belong to no namespace, so the prefix should be one."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": class_name(prefix, tensor_parallel_size), "labels": labels},
        "value": priority(tensor_parallel_size),
        "preemptionPolicy": "Never",
        "description": f"Model servers with {tensor_parallel_size} GPUs: larger ones are placed before smaller ones.",
    }
