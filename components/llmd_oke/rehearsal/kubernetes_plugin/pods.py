"""What pods say about why they aren't ready."""

from collections.abc import Iterator

from llmd_oke.rehearsal.kubernetes_plugin.objects import condition, id_of, name_of, namespace_of
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig, dig_list

_PULL_PREFIX = "rpc error: code = Unknown desc = Error response from daemon: "
_PULL_SUFFIX = ": manifest unknown"


def is_ready(pod: JsonObject) -> bool:
    """Scheduled, initialized, and ready or done."""
    done = dig(pod, "status", "phase") == "Succeeded"
    return all(_is_true(pod, type_) for type_ in ("PodScheduled", "Initialized")) and (done or _is_true(pod, "Ready"))


def messages(pod: JsonObject) -> list[str]:
    """One text for each of its conditions that isn't met and says why."""
    found = [_message(pod, type_) for type_ in ("Initialized", "Ready") if not _is_true(pod, type_)]
    return [message for message in found if message]


def _message(pod: JsonObject, type_: str) -> str:
    entry = condition(pod, type_)
    if entry is None or (type_ == "Ready" and dig(pod, "status", "phase") == "Succeeded"):
        return ""
    errors = "\n".join(_container_errors(pod))
    said = entry["message"] if entry.get("reason") and entry.get("message") else ""
    return f"[Pod {_readable_name(pod)}]: {said}{errors}" if errors or entry.get("message") else ""


def _readable_name(pod: JsonObject) -> str:
    return name_of(pod) if namespace_of(pod) == "default" else id_of(pod)


def _is_true(pod: JsonObject, type_: str) -> bool:
    return dig(condition(pod, type_), "status") == "True"


def _container_errors(pod: JsonObject) -> Iterator[str]:
    for status in dig_list(pod, "status", "containerStatuses"):
        if not status.get("ready"):
            yield from _waiting(status)
            yield from _terminated(status)
            yield from _last_termination(status)


def _waiting(status: JsonObject) -> Iterator[str]:
    state = dig(status, "state", "waiting")
    if state and state.get("reason") != "ContainerCreating":
        yield f"[{state.get('reason', '')}] {_trimmed(state.get('message', ''))}"


def _terminated(status: JsonObject) -> Iterator[str]:
    state = dig(status, "state", "terminated")
    if state and state.get("reason"):
        if state.get("message"):
            yield f"[{state['reason']}] {_trimmed(state['message'])}"
        else:
            yield f'container "{status["name"]}" completed with exit code {state.get("exitCode", 0)}'


def _last_termination(status: JsonObject) -> Iterator[str]:
    last = dig(status, "lastState", "terminated")
    if last:
        when, why, code = last.get("finishedAt"), last.get("reason", ""), last.get("exitCode", 0)
        yield f'container "{status["name"]}" terminated at {when} ({why}: exit code {code})'
        if last.get("message"):
            yield last["message"]


def _trimmed(message: str) -> str:
    return message.removeprefix(_PULL_PREFIX).removesuffix(_PULL_SUFFIX)
