"""Facts for operating a stack: how OCI lists resources, remedies, durations, limits and list prices."""

from collections.abc import Mapping
from functools import cache
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.values import Entry, follows_project, required_entry


class OciResource(Entry):
    """A type of resource: where OCI lists it, and how OCI's command line calls it.

    `again` is the reason why one of them may be created a second time without harm; all else is None or unused then.
    `held_by` are ways into what is listed, each to the id, or ids, of what it goes with.
    """

    service: str = ""
    path: str = ""
    name: str = "displayName"
    listed_name: str | None = None
    query: tuple[str, ...] = ()
    items: str | None = None
    tagged: bool = True
    id: str | None = None
    command: str = ""
    list: str = "list --all --compartment-id {compartmentId}"
    delete: str = "delete"
    costs: bool = False
    again: str | None = None
    held_by: tuple[tuple[str, ...], ...] = ()

    def show_command(self, inputs: Mapping[str, str]) -> str:
        """The command that lists what there is."""
        return f"oci {self.command} {self.list.format_map(_Known(inputs))}"

    def delete_command(self, identifier: str) -> str:
        """Return the command that deletes one of them."""
        return f"oci {self.command} {self.delete} --{self.command.rsplit(' ', 1)[-1]}-id {identifier}"


class OciResources(Entry):
    """All types; `gone` are the lifecycle states of what is no longer there, `created` those that nothing has while it
    is being created, `under_way` those that become others by themselves.
    """

    gone: tuple[str, ...]
    created: tuple[str, ...]
    under_way: tuple[str, ...]
    resources: dict[str, OciResource]


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


@cache
def oci_resources() -> OciResources:
    """The types that the kit creates."""
    return required_entry("operations", "oci-resources", OciResources)


class Remedy(Entry):
    """Remedy for a failure that says these words."""

    says: str
    remedy: str


class _Remedies(Entry):
    remedies: tuple[Remedy, ...]


@cache
def _remedies() -> _Remedies:
    return required_entry("operations", "remedies", _Remedies)


def remedy_for(failure: str) -> str | None:
    """Return what helps against a failure, None where nothing is known."""
    return next((item.remedy for item in _remedies().remedies if item.says in failure), None)


class SourcedDuration(Entry):
    """A time with its source; None where it is assumed."""

    seconds: float
    source: str | None


class ImagePullFigures(Entry):
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
    """Start of a server: how fast it reads its weights, in MB a second, and what it takes besides, in seconds;
    `compiling_seconds` of these are saved where the code that it compiles is there already.
    """

    read_megabytes_per_s: float
    seconds: float
    compiling_seconds: float
    source: str | None


class BringUpFacts(Entry):
    """Each leg's time, or what it follows from."""

    network: SourcedDuration
    control_plane: SourcedDuration
    system_nodes: SourcedDuration
    gpu_nodes: SourcedDuration
    operators: SourcedDuration
    devices: SourcedDuration
    acceptance: SourcedDuration
    router: SourcedDuration
    first_request: SourcedDuration
    image: ImagePullFigures
    weights: WeightRates
    server_start: ServerStart


@cache
def bring_up_facts() -> BringUpFacts:
    """The facts of `values/bring-up/legs.yaml`."""
    return required_entry("bring-up", "legs", BringUpFacts)


class ServiceLimit(Entry):
    """A limit of a service, by the names that it goes by, the likelier first."""

    service: str
    names: tuple[str, ...]


class ServiceLimits(Entry):
    """The limits of clusters and of networks."""

    cluster: ServiceLimit
    network: ServiceLimit


@cache
def limits() -> ServiceLimits:
    """The limits of clusters and of networks."""
    return required_entry("limits", "oci", ServiceLimits)


class TagLimits(Entry):
    """Limits of the tags of one resource of OCI (`bytes` are those of all as JSON), how much of it the kit and OCI use
    themselves (`own_...`), the namespaces that OCI sets itself, and the tags that tenancies have by themselves.
    """

    freeform: int
    defined: int
    bytes: int
    own_freeform: int
    own_defined: int
    own_bytes: int
    reserved_namespaces: tuple[str, ...]
    automatic: tuple[str, ...]


@cache
def tag_limits() -> TagLimits:
    """The limits of `values/limits/tags.yaml`."""
    return required_entry("limits", "tags", TagLimits)


class PipelineLimits(Entry):
    """Minutes: of resources without a limit of their own, of what runs around the engine, and of GitHub's jobs, on
    hosted runners and on one's own.
    """

    kubernetes_minutes: int
    oci_minutes: int
    around_minutes: int
    hosted_job_minutes: int
    own_job_minutes: int


@cache
def pipeline_limits() -> PipelineLimits:
    """The limits of `values/limits/pipeline.yaml`."""
    return required_entry("limits", "pipeline", PipelineLimits)


StackFeature = Literal[
    "rights",
    "lustre",
    "keys",
    "defined-tags",
    "image-files",
    "images-elsewhere",
    "reservations",
    "network-elsewhere",
]
"""What a stack may use that needs more rights: dynamic groups and policies that it makes, a Lustre file system, keys of
one's own, defined tags, image files in Object Storage, and images, reservations and a network in other compartments.
"""


class PolicyStatement(Entry):
    """A policy's statement, with `$group`, `$compartment_id` and what else a stack has left open, and where it is
    documented; `when` is what a stack uses that needs it.
    """

    text: str
    source: str
    when: StackFeature | None = None


class ClusterRule(Entry):
    """A rule of a ClusterRole."""

    api_groups: tuple[str, ...] = Field(alias="apiGroups")
    resources: tuple[str, ...]
    verbs: tuple[str, ...]


class PipelineIdentity(Entry):
    """Rights of an identity of continuous integration in OCI and, by `rules`, in the cluster."""

    why: str
    statements: tuple[PolicyStatement, ...]
    rules: tuple[ClusterRule, ...]


class PipelineIdentities(Entry):
    """Identities of continuous integration, by name."""

    identities: dict[str, PipelineIdentity]


@cache
def pipeline_identities() -> dict[str, PipelineIdentity]:
    """The identities of `values/iam/pipelines.yaml`."""
    return required_entry("iam", "pipelines", PipelineIdentities).identities


class FlexiblePrice(Entry):
    """Price of a flexible shape by the hour, for each OCPU and each GB of memory."""

    usd_per_ocpu_hour: NonNegativeFloat
    usd_per_gb_hour: NonNegativeFloat


class BlockVolumePrice(Entry):
    """Price of a block or boot volume by the month, for each GB, and for each performance unit (VPU) of each GB."""

    usd_per_gb_month: NonNegativeFloat
    usd_per_vpu_gb_month: NonNegativeFloat
    default_vpus_per_gb: NonNegativeInt

    def usd_per_gb_month_at(self, vpus_per_gb: int | None) -> float:
        """The price of one GB with that many VPUs; OCI's default if None."""
        vpus = self.default_vpus_per_gb if vpus_per_gb is None else vpus_per_gb
        return self.usd_per_gb_month + vpus * self.usd_per_vpu_gb_month


class Prices(Entry):
    """OCI's list prices in US dollars. `as_of` is their date, `not_included` what costs besides."""

    as_of: str
    flexible_shapes: dict[str, FlexiblePrice]
    enhanced_cluster_usd_per_hour: NonNegativeFloat
    block_volume: BlockVolumePrice
    hours_per_month: PositiveInt
    not_included: tuple[str, ...]


PRICES = EntryKind("prices", Prices, files=("oci",))


@follows_project
def prices() -> Prices:
    """The list prices of the catalogue, or what the project pays instead of them."""
    return entries.required_entry(PRICES, "oci")
