import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import Status
from lightkube.resources.core_v1 import ConfigMap
from llmd_base.errors import KitError
from llmd_rehearsal.watches import Changes, ObjectStore, identity

Change = tuple[str, str, bool]


def config_map(name: str, version: str = "1", uid: str = "") -> ConfigMap:
    meta = {"namespace": "serving", "name": name, "resourceVersion": version, "uid": uid or f"uid-{name}"}
    return cast("ConfigMap", ConfigMap.from_dict({"metadata": meta}))


class Listing:
    resourceVersion = "9"  # noqa: N815  # lightkube's name

    def __init__(self, objects: list[ConfigMap]) -> None:
        self._objects = objects

    async def __aiter__(self) -> AsyncIterator[ConfigMap]:
        for item in self._objects:
            yield item


class ScriptedClient:
    """A client that gives each list in turn, and after each the events of one watch, which then ends as 410 Gone."""

    def __init__(self, *rounds: tuple[list[ConfigMap], list[tuple[str, ConfigMap]]]) -> None:
        self._rounds = list(rounds)
        self._events: list[tuple[str, ConfigMap]] = []
        self.done = asyncio.Event()

    def list(self, kind: type[ConfigMap], namespace: str) -> Listing:
        result, self._events = self._rounds.pop(0)
        return Listing(result)

    async def watch(
        self, kind: type[ConfigMap], namespace: str, resource_version: str
    ) -> AsyncIterator[tuple[str, ConfigMap]]:
        for event in self._events:
            yield event
        if not self._rounds:
            self.done.set()
            await asyncio.Event().wait()
        raise ApiError(status=Status(code=410, message="too old resource version"))


async def changes(client: ScriptedClient) -> tuple[ObjectStore[ConfigMap], list[Change]]:
    store = ObjectStore(cast("Any", client), ConfigMap)
    seen: list[Change] = []
    store.subscribe(lambda thing, exists: seen.append((identity(thing).name, identity(thing).uid, exists)))
    running = asyncio.create_task(store.run())
    await asyncio.wait_for(client.done.wait(), 10)
    running.cancel()
    return store, seen


async def test_listing_and_watching_objects_yields_each_change() -> None:
    events = [("ADDED", config_map("b")), ("MODIFIED", config_map("b", "2")), ("DELETED", config_map("a", "3"))]
    store, seen = await changes(ScriptedClient(([config_map("a")], events)))
    assert [(name, exists) for name, _, exists in seen] == [("a", True), ("b", True), ("b", True), ("a", False)]
    assert [identity(item).name for item in store] == ["b"]


async def test_after_a_watch_ends_with_410_gone_only_differences_are_yielded() -> None:
    before = [config_map("same"), config_map("changed"), config_map("gone")]
    after = [config_map("same"), config_map("changed", "2"), config_map("new")]
    store, seen = await changes(ScriptedClient((before, []), (after, [])))
    assert [(name, exists) for name, _, exists in seen[3:]] == [("gone", False), ("changed", True), ("new", True)]
    assert store.get("serving", "gone") is None


async def test_waiting_for_the_first_list_of_watched_objects_has_a_timeout() -> None:
    store = ObjectStore(cast("Any", ScriptedClient()), ConfigMap)
    with pytest.raises(KitError, match="no list of ConfigMap within 0 s"):
        await store.synced(timeout_s=0.01)


def test_a_burst_of_changes_of_watched_objects_is_handled_once() -> None:
    async def looks_at(changes: int) -> int:
        looks, looked = 0, asyncio.Event()
        followed = Changes(gather_s=0.0)

        async def look() -> None:
            nonlocal looks
            looks += 1
            looked.set()

        task = asyncio.create_task(followed.follow(look))
        await looked.wait()
        looked.clear()
        for _ in range(changes):
            followed.note("object", True)
        await looked.wait()
        task.cancel()
        return looks

    assert asyncio.run(looks_at(100)) == 2
