"""What is known of the time that a deployment takes to come up."""

from functools import cache

from pydantic import Field

from llmd_oke.catalogue.files import Entry, required_entry


class Duration(Entry):
    """A time with its source; None where it is assumed."""

    seconds: float
    source: str | None


class ImagePull(Entry):
    """The size of vLLM's image in GB (10^9 bytes, compressed) where the lock has none, and the rate of its pull."""

    gigabytes: float
    megabytes_per_s: float
    source: str | None


class DownloadRate(Entry):
    """A node's rate of downloads, in MB (10^6 bytes) a second."""

    megabytes_per_s: float
    source: str | None


class WeightRates(Entry):
    """Rates by the source of weights."""

    hugging_face: DownloadRate = Field(alias="hugging-face")
    object_storage: DownloadRate = Field(alias="object-storage")


class ServerStart(Entry):
    """How fast a server reads its weights, in MB a second, and what it takes besides, in seconds."""

    read_megabytes_per_s: float
    seconds: float
    source: str | None


class BringUpFacts(Entry):
    """Each leg's time, or what it follows from."""

    network: Duration
    control_plane: Duration
    system_nodes: Duration
    gpu_nodes: Duration
    operators: Duration
    devices: Duration
    router: Duration
    first_request: Duration
    image: ImagePull
    weights: WeightRates
    server_start: ServerStart


@cache
def bring_up_facts() -> BringUpFacts:
    """The facts of `values/bring-up/legs.yaml`."""
    return required_entry("bring-up", "legs", BringUpFacts)
