"""Replay recorded calls of the real plug-in against the stand-in, and tell where the answers differ.

Placeholders of the recordings (`<uid-3>`, `<rand-1>`, ...) stand for what the stand-in answers where the real plug-in
answered them; later requests carry the same.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format
from llmd_rehearsal.plugin_values import is_list, is_map
from pulumi.runtime.proto import provider_pb2 as messages
from pulumi.runtime.proto import provider_pb2_grpc, status_pb2

REQUESTS: dict[str, Any] = {
    "CheckConfig": messages.CheckRequest,
    "DiffConfig": messages.DiffRequest,
    "Configure": messages.ConfigureRequest,
    "Check": messages.CheckRequest,
    "Diff": messages.DiffRequest,
    "Create": messages.CreateRequest,
    "Update": messages.UpdateRequest,
    "Delete": messages.DeleteRequest,
    "Read": messages.ReadRequest,
    "Invoke": messages.InvokeRequest,
}
PLACEHOLDER = re.compile(r"<[a-z-]+(?:-\d+)?(?:: [a-z ]+)?>")
# Equal numbers mean equal values for these; the others, and versions of objects that controllers go on changing,
# stand for anything.
BOUND = re.compile(r"<(uid|hash|rand|cluster-ip|pod-ip)-\d+>")
FORMS = {"uid": r"[0-9a-f-]{36}", "hash": r"[0-9a-f]{8}", "rand": r"[0-9a-f]{8}"}
TOKEN_VOLUME = re.compile(r"kube-api-access-\w{5}")
# Recorded waits that end in a time-out take this long here; the others keep their limit.
TIMEOUT_S = 20
SHORT_TIMEOUT_S = 3
# How far a Deployment came that isn't done.
UNDER_WAY = ("NewReplicaSetCreated", "ReplicaSetUpdated", "FoundNewReplicaSet")
# Which of these a real plug-in reports depends on what it saw last.
PASSING_REASONS = ("[Pod ", "[MinimumReplicasUnavailable] ")

Action = Callable[[str], None]


class Replay:
    """One case. `texts` are the values of placeholders that are known from the start; `actions` what was done outside
    of Pulumi, by its description; `settle` waits, before each step, until the controllers did their work."""

    def __init__(self, port: int, texts: Mapping[str, str], actions: Mapping[str, Action], settle: Action) -> None:
        self._port = port
        self._settle = settle
        self._values = dict(texts)
        self._actions = actions
        self._stub: Any = None
        self._channels: list[grpc.Channel] = []
        self._connect()

    def run(self, case: Path) -> list[str]:
        """The differences between the recorded answers and the stand-in's."""
        differences: list[str] = []
        step = 0
        for line in map(json.loads, case.read_text().splitlines()):
            step = line.get("step", step)
            if "op" in line:
                self._settle(f"c{case.name[:2]}")
            if line.get("op") in {"kubectl", "sh"}:
                self._actions[line["does"]](f"c{case.name[:2]}")
            elif line.get("method") in REQUESTS:
                place = f"step {step} {line['method']} {line['request'].get('name', '')}"
                differences += [f"{place}: {difference}" for difference in self._call(line)]
        for channel in self._channels:
            channel.close()
        return differences

    def _connect(self) -> None:
        channel = grpc.insecure_channel(f"127.0.0.1:{self._port}", options=[("grpc.use_local_subchannel_pool", 1)])
        self._channels.append(channel)
        self._stub = provider_pb2_grpc.ResourceProviderStub(channel)

    def _call(self, line: dict[str, Any]) -> Iterator[str]:
        if line["method"] == "Configure":
            self._connect()
        request = json_format.ParseDict(self._request(line), REQUESTS[line["method"]](), ignore_unknown_fields=True)
        try:
            answer = {"response": _as_json(getattr(self._stub, line["method"])(request))}
        except grpc.RpcError as error:
            answer = {"error": _error(error)}
        for key in ("response", "error"):
            if (key in line) != (key in answer):
                yield f"expected {json.dumps(line.get('response', line.get('error')))}, got {json.dumps(answer)}"
                return
            if key in line:
                recorded = _comparable(line[key], line["method"])
                yield from self._differences(recorded, _comparable(answer[key], line["method"]), "")

    def _request(self, line: dict[str, Any]) -> dict[str, Any]:
        request = self._filled(line["request"])
        if "randomSeed" in request:
            request["randomSeed"] = base64.b64encode(b"seed" + str(id(line)).encode()).decode()
        if 0 < request.get("timeout", 0) <= TIMEOUT_S:
            request["timeout"] = SHORT_TIMEOUT_S
        return {key: value for key, value in request.items() if not key.startswith("resourceStatus")}

    def _filled(self, value: Any) -> Any:
        if is_map(value):
            return {key: self._filled(item) for key, item in value.items()}
        if is_list(value):
            return [self._filled(item) for item in value]
        if isinstance(value, str):
            return PLACEHOLDER.sub(lambda match: self._values.get(match[0], match[0]), value)
        return value

    def _differences(self, recorded: Any, actual: Any, path: str) -> Iterator[str]:
        if is_map(recorded) and is_map(actual):
            for key in sorted(recorded.keys() | actual.keys()):
                if key not in actual or key not in recorded:
                    side = "more" if key in actual else "less"
                    yield f"{path}.{key} is {side}: {json.dumps(actual.get(key, recorded.get(key)))[:300]}"
                else:
                    yield from self._differences(recorded[key], actual[key], f"{path}.{key}")
        elif is_list(recorded) and is_list(actual) and len(recorded) == len(actual):
            for index, (one, other) in enumerate(zip(recorded, actual, strict=True)):
                yield from self._differences(one, other, f"{path}[{index}]")
        elif not self._matches(recorded, actual):
            yield f"{path}: recorded {json.dumps(self._filled(recorded))[:600]}, got {json.dumps(actual)[:600]}"

    def _matches(self, recorded: Any, actual: Any) -> bool:
        if recorded == "<node-port>":
            return isinstance(actual, float)
        if not isinstance(recorded, str) or not isinstance(actual, str):
            return recorded == actual
        names: list[str] = []

        def piece(match: re.Match[str]) -> str:
            name = match[0]
            if name in self._values:
                return re.escape(self._values[name])
            if not BOUND.fullmatch(name):
                return r"(?s:.+?)"
            if name in names:
                return f"(?P=v{names.index(name)})"
            names.append(name)
            return f"(?P<v{len(names) - 1}>{FORMS.get(name[1:].split('-')[0], '.+?')})"

        pattern, position = "", 0
        for match in PLACEHOLDER.finditer(recorded):
            pattern += re.escape(recorded[position : match.start()]) + piece(match)
            position = match.end()
        match = re.fullmatch(pattern + re.escape(recorded[position:]), actual)
        if match:
            self._values.update({name: match[f"v{index}"] for index, name in enumerate(names)})
        return match is not None


def _as_json(message: Any) -> dict[str, Any]:
    return {} if isinstance(message, empty_pb2.Empty) else json_format.MessageToDict(message)


def _error(error: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"code": error.code().name, "message": error.details()}
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            details = status_pb2.Status.FromString(value).details
            unpacked = [_unpacked(detail) for detail in details]
            if unpacked:
                answer["details"] = unpacked
    return answer


def _unpacked(detail: Any) -> dict[str, Any]:
    message = messages.ErrorResourceInitFailed()
    detail.Unpack(message)
    return {"@type": "pulumirpc.ErrorResourceInitFailed", **json_format.MessageToDict(message)}


def _comparable(value: Any, method: str) -> Any:
    """The value without what the moment decides: other managers' fields, the order of conditions, a failing Job's
    status, and which pods had told why they fail."""
    if is_list(value):
        return [_comparable(item, method) for item in value]
    if isinstance(value, str):
        return TOKEN_VOLUME.sub("kube-api-access-<any>", value)
    if not is_map(value):
        return value
    changed = {key: _comparable(item, method) for key, item in value.items()}
    if changed.get("reason") in UNDER_WAY:
        changed |= {"reason": "<under-way>", "message": "<under-way>"}
    if "managedFields" in changed:
        own = [entry for entry in changed["managedFields"] if entry["manager"].startswith("pulumi-kubernetes")]
        changed["managedFields"] = own
    if isinstance(changed.get("conditions"), list):
        changed["conditions"] = sorted(changed["conditions"], key=lambda condition: condition["type"])
    if "replaces" in changed:
        changed["replaces"] = sorted(changed["replaces"])
    if "reasons" in changed:
        changed["reasons"] = [reason for reason in changed["reasons"] if not reason.startswith(PASSING_REASONS)]
        if changed["properties"].get("kind") == "Job":
            changed["properties"].pop("status", None)
    return changed
