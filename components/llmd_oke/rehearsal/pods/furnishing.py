"""Gives a pod its folders: volumes, kept current, and files of /etc."""

import asyncio
import logging
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx2
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.pods import volumes
from llmd_oke.rehearsal.pods.etc_files import etc_files
from llmd_oke.rehearsal.pods.facts import MissingSourceError, PodFacts, spec_of
from llmd_oke.rehearsal.pods.materials import write_files
from llmd_oke.rehearsal.pods.places import Places
from llmd_oke.rehearsal.pods.surroundings import Surroundings
from llmd_oke.rehearsal.pods.tokens import renewal_s, request_tokens
from llmd_oke.rehearsal.pods.volumes import File, TokenWish

_log = logging.getLogger(__name__)
_RETRY_S = 1.0


class Furnishing:
    """One pod's volumes on disk."""

    def __init__(self, surroundings: Surroundings, places: Places, facts: PodFacts) -> None:
        self._surroundings = surroundings
        self._places = places
        self._facts = facts
        self._written: dict[str, dict[str, File]] = {}
        self._tokens: Mapping[TokenWish, str] = {}
        self._stale = asyncio.Event()
        self.folders: dict[str, Path] = {}

    @property
    def file_volumes(self) -> frozenset[str]:
        """Names of the volumes whose files come from the API."""
        return frozenset(self._written)

    def touch(self) -> None:
        """Say that a source may have changed."""
        self._stale.set()

    async def furnish(self, pod: Pod) -> None:
        """Write everything; MissingSourceError when something isn't there yet, ApiError when there's no token."""
        wishes = volumes.token_wishes(pod)
        if wishes and not self._tokens:
            self._tokens = await request_tokens(self._surroundings.client, pod, wishes)
        self._write_etc(pod)
        self._write_volumes(pod)

    async def keep_current(self, pod: Pod) -> None:
        """Rewrite volumes when their sources change or tokens near their end, until cancelled."""
        wishes = volumes.token_wishes(pod)
        while True:
            try:
                await asyncio.wait_for(self._stale.wait(), renewal_s(wishes))
            except TimeoutError:
                with suppress(ApiError, httpx2.HTTPError):
                    self._tokens = await request_tokens(self._surroundings.client, pod, wishes)
            self._stale.clear()
            try:
                self._write_volumes(pod)
            except MissingSourceError as error:
                _log.info("volumes of %s not refreshed: %s", self._places.pod.name, error)

    def remove(self) -> None:
        """Remove the pod's folders; logs and claims stay."""
        shutil.rmtree(self._places.root, ignore_errors=True)

    def _write_etc(self, pod: Pod) -> None:
        self._places.etc.mkdir(parents=True, exist_ok=True)
        for name, text in etc_files(pod, self._facts.pod_ip, self._surroundings.resolver).items():
            (self._places.etc / name).write_text(text)

    def _write_volumes(self, pod: Pod) -> None:
        contents = volumes.Contents(self._facts, self._surroundings.sources, self._tokens)
        for volume in spec_of(pod).volumes or []:
            if not volumes.has_files(volume):
                path = volumes.folder(volume, pod, self._places.root, self._places.state_folder)
                path.mkdir(parents=True, exist_ok=True)
                self.folders[volume.name] = path
                continue
            wanted = volumes.files(volume, pod, contents)
            if self._written.get(volume.name) != wanted:
                self.folders[volume.name] = self._places.files_volume(volume.name)
                write_files(self.folders[volume.name], wanted)
                self._written[volume.name] = wanted
