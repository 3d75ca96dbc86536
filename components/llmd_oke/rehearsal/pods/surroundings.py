"""What all pods of the agent share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightkube.core.async_client import AsyncClient
from lightkube.resources.core_v1 import ConfigMap, Secret, Service

from llmd_oke.rehearsal.nodes.fleet import Fleet
from llmd_oke.rehearsal.pods.container_worker import BackOff
from llmd_oke.rehearsal.pods.etc_files import Resolver
from llmd_oke.rehearsal.pods.events import Recorder
from llmd_oke.rehearsal.pods.factory import ContainerFactory
from llmd_oke.rehearsal.pods.facts import decoded
from llmd_oke.rehearsal.pods.networks import AddressPool, Networks
from llmd_oke.rehearsal.watches import Store, texts


@dataclass(frozen=True)
class StoredSources:
    """ConfigMaps and Secrets as the watches last saw them."""

    config_maps: Store[ConfigMap]
    secrets: Store[Secret]

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Give a ConfigMap's data and binary data."""
        found = self.config_maps.get(namespace, name)
        if found is None:
            return None
        return {key: value.encode() for key, value in texts(found, "data").items()} | decoded(
            texts(found, "binaryData")
        )

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Give a Secret's decoded data."""
        found = self.secrets.get(namespace, name)
        return None if found is None else decoded(texts(found, "data"))


@dataclass(frozen=True)
class Surroundings:
    """Services of the agent to its pods, and settings that hold for all of them."""

    client: AsyncClient
    fleet: Fleet
    networks: Networks
    addresses: AddressPool
    sources: StoredSources
    services: Store[Service]
    factory: ContainerFactory
    recorder: Recorder
    state_folder: Path
    resolver: Resolver
    probe_time_scale: float
    back_off: BackOff
