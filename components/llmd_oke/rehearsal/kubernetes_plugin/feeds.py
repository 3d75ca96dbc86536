"""Live collections: one list and watch of a collection feeds every wait that looks at it."""

import json
import logging
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import httpx2

from llmd_oke.rehearsal.kubernetes_plugin.client import Cluster, Resource
from llmd_oke.rehearsal.kubernetes_plugin.errors import ApiError, Unreachable
from llmd_oke.rehearsal.kubernetes_plugin.objects import name_of
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject

WATCH_LIMIT_S: Final = 20
"""How long one watch lasts; a feed that nobody follows any more ends with its watch."""
RETRY_S: Final = 0.5

_log = logging.getLogger(__name__)


class Feed:
    """The objects of one collection, kept up to date by a thread of its own for as long as somebody follows."""

    def __init__(self, cluster: Cluster, resource: Resource, namespace: str, news: threading.Event) -> None:
        self._cluster = cluster
        self._resource = resource
        self._namespace = namespace
        self._lock = threading.Lock()
        self._objects: dict[str, JsonObject] = {}
        self._changed_at: dict[str, float] = {}
        self._followers = {news}
        self._ended = False
        self._listed = threading.Event()
        threading.Thread(target=self._run, name=f"feed {resource.plural}", daemon=True).start()

    def follow(self, news: threading.Event) -> bool:
        """Has `news` set at every change from now on; False if the feed has ended."""
        with self._lock:
            if not self._ended:
                self._followers.add(news)
            return not self._ended

    def unfollow(self, news: threading.Event) -> None:
        """Ends `follow`."""
        with self._lock:
            self._followers.discard(news)

    def wait_listed(self, limit_s: float) -> None:
        """Waits for the first answer of the API server."""
        self._listed.wait(limit_s)

    def one(self, name: str) -> JsonObject | None:
        """The object of that name, or None."""
        with self._lock:
            return self._objects.get(name)

    def all(self) -> list[JsonObject]:
        """All objects."""
        with self._lock:
            return list(self._objects.values())

    def changed_at(self, name: str) -> float | None:
        """When the object last changed, on the monotonic clock; None for one never seen."""
        with self._lock:
            return self._changed_at.get(name)

    def _run(self) -> None:
        version = ""
        while not self._end_if_alone():
            try:
                version = version or self._list()
                version = self._watch(version)
            except (ApiError, Unreachable, httpx2.TransportError, ValueError) as error:
                _log.info("feed of %s: %s", self._resource.plural, error)
                version = ""
                time.sleep(RETRY_S)

    def _end_if_alone(self) -> bool:
        with self._lock:
            self._ended = not self._followers
            return self._ended

    def _list(self) -> str:
        answer = self._cluster.get_path(self._resource.path(self._namespace))
        found = {name_of(item): item for item in answer["items"]}
        with self._lock:
            for name in found.keys() | self._objects.keys():
                if found.get(name) != self._objects.get(name):
                    self._changed_at[name] = time.monotonic()
            self._objects = found
        self._listed.set()
        self._tell()
        return answer["metadata"]["resourceVersion"]

    def _watch(self, version: str) -> str:
        """Follows one watch to its end; gives the version to go on from, empty to list again."""
        for line in self._cluster.watch(self._resource, self._namespace, version, WATCH_LIMIT_S):
            event: Any = json.loads(line)
            if event["type"] == "ERROR":
                return ""
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._take(event["type"], event["object"])
        return version

    def _take(self, type_: str, obj: JsonObject) -> None:
        with self._lock:
            self._changed_at[name_of(obj)] = time.monotonic()
            if type_ == "DELETED":
                self._objects.pop(name_of(obj), None)
            else:
                self._objects[name_of(obj)] = obj
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            for news in self._followers:
                news.set()


class Feeds:
    """The feeds of one API server, each started when it is first followed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._feeds: dict[tuple[Resource, str], Feed] = {}

    @contextmanager
    def following(
        self, resources: tuple[Resource, ...], namespace: str, news: threading.Event
    ) -> Generator[list[Feed]]:
        """The feeds of some collections; `news` is set at every change of any of them."""
        with ExitStack() as stack:
            feeds: list[Feed] = []
            for resource in resources:
                feed = self._followed(resource, namespace if resource.namespaced else "", news)
                stack.callback(feed.unfollow, news)
                feeds.append(feed)
            for feed in feeds:
                feed.wait_listed(RETRY_S * 10)
            yield feeds

    def _followed(self, resource: Resource, namespace: str, news: threading.Event) -> Feed:
        with self._lock:
            feed = self._feeds.get((resource, namespace))
            if feed is None or not feed.follow(news):
                feed = self._feeds[resource, namespace] = Feed(self._cluster, resource, namespace, news)
            return feed
