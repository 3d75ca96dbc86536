"""Catalogue of operations: OCI's list commands, remedies, durations of a bring-up, limits, permissions of pipelines and
list prices.
"""

from collections.abc import Mapping
from functools import cache
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.values import Entry, entry_reader, follows_project, required_entry


class OciResource(Entry):
    """Type of OCI resource: how the API lists resources of the type, and the commands of the OCI CLI for them.

    Attributes:
        service: service of the API, as in `HOSTS` of `access/oci_client.py`.
        path: path of the list in the API, with placeholders for inputs of the resource; empty if it can't be looked up.
        name: input of the resource that has its name.
        listed_name: key of the name in a listed resource; None if it is `name`.
        query: inputs that are parameters of the list, besides the compartment.
        items: key of the answer that has the list; None if the answer is the list.
        tagged: whether resources of the type are recognised by the stack's tag.
        id: form of the Pulumi provider's ID; None if it is the OCID.
        command: command of the OCI CLI without its last word, such as `ce cluster`.
        list: last word of the command that lists resources, with options.
        delete: last word of the command that deletes a resource.
        costs: whether a resource of the type costs money.
        again: reason why creating a resource twice is harmless, so that it isn't looked up; None for the other types.
        held_by: paths into a listed resource, each to the OCID, or OCIDs, of the resource that it belongs to.
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
        """Return the command of the OCI CLI that lists resources of the type."""
        return f"oci {self.command} {self.list.format_map(_Known(inputs))}"

    def delete_command(self, identifier: str) -> str:
        """Return the command of the OCI CLI that deletes the resource with the OCID `identifier`."""
        return f"oci {self.command} {self.delete} --{self.command.rsplit(' ', 1)[-1]}-id {identifier}"


class OciResources(Entry):
    """Types of OCI resources that the kit creates, and names of lifecycle states: `gone`, of deleted resources;
    `created`, of resources whose creation has ended; `under_way`, of resources that are changing.
    """

    gone: tuple[str, ...]
    created: tuple[str, ...]
    under_way: tuple[str, ...]
    resources: dict[str, OciResource]


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


oci_resources = entry_reader("operations", "oci-resources", OciResources)
"""Return the types of OCI resources that the kit creates."""


class Remedy(Entry):
    """Remedy for failures whose error message contains the text `says`."""

    says: str
    remedy: str


class _Remedies(Entry):
    remedies: tuple[Remedy, ...]


def remedy_for(failure: str) -> str | None:
    """Return the remedy for a failure message; None if none is known."""
    known = required_entry("operations", "remedies", _Remedies).remedies
    return next((item.remedy for item in known if item.says in failure), None)


class SourcedDuration(Entry):
    """Duration in seconds with its source; `source` is None if the duration is assumed."""

    seconds: float
    source: str | None


class ImagePullFigures(Entry):
    """Size of vLLM's image in GB (10^9 bytes, compressed), used if the lock has none, and the rate of its pull in MB
    (10^6 bytes) per second.
    """

    gigabytes: float
    megabytes_per_s: float
    source: str | None


class DownloadRate(Entry):
    """Download rate of a node in MB (10^6 bytes) per second."""

    megabytes_per_s: float
    source: str | None


class WeightRates(Entry):
    """Download rates of weights by their origin: Hugging Face or Object Storage."""

    hugging_face: DownloadRate = Field(alias="hugging-face")
    object_storage: DownloadRate = Field(alias="object-storage")


class ServerStart(Entry):
    """Durations of a vLLM server's start: the rate of reading weights in MB (10^6 bytes) per second, and the rest in
    seconds, of which `compiling_seconds` are saved if compiled code is cached.
    """

    read_megabytes_per_s: float
    seconds: float
    compiling_seconds: float
    source: str | None


class BringUpFacts(Entry):
    """Duration of each step of a stack's bring-up, or the rates that the duration is computed from."""

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


bring_up_facts = entry_reader("bring-up", "legs", BringUpFacts)
"""Return the durations and rates of the steps of a bring-up (`values/bring-up/legs.yaml`)."""


class ServiceLimit(Entry):
    """OCI service limit, with the names that it may have, the most likely first."""

    service: str
    names: tuple[str, ...]


class ServiceLimits(Entry):
    """OCI service limits of clusters and networks."""

    cluster: ServiceLimit
    network: ServiceLimit


limits = entry_reader("limits", "oci", ServiceLimits)
"""Return the names of OCI's service limits for clusters and networks."""


class TagLimits(Entry):
    """OCI's limits of the tags of one resource (`bytes` of all tags as JSON), the part that the kit and OCI use
    themselves (`own_...`), the namespaces that only OCI sets, and the tags that tenancies add automatically.
    """

    freeform: int
    defined: int
    bytes: int
    own_freeform: int
    own_defined: int
    own_bytes: int
    reserved_namespaces: tuple[str, ...]
    automatic: tuple[str, ...]


tag_limits = entry_reader("limits", "tags", TagLimits)
"""Return OCI's limits for tags of a resource (`values/limits/tags.yaml`)."""


class PipelineLimits(Entry):
    """Time limits in minutes of pipelines: of Kubernetes and OCI resources without a limit of their own, of the steps
    around Pulumi's engine, and of GitHub's jobs on hosted and self-hosted runners.
    """

    kubernetes_minutes: int
    oci_minutes: int
    around_minutes: int
    hosted_job_minutes: int
    own_job_minutes: int


pipeline_limits = entry_reader("limits", "pipeline", PipelineLimits)
"""Return the time limits of CI pipelines (`values/limits/pipeline.yaml`)."""


StackFeature = Literal[
    "rights",
    "lustre",
    "keys",
    "defined-tags",
    "image-files",
    "images-elsewhere",
    "reservations",
    "oci-alarms",
    "oci-logs",
    "oci-pod-logs",
    "network-elsewhere",
    "budget",
]
"""Features of a stack that need additional permissions: created dynamic groups and policies (`rights`), a Lustre file
system, customer-managed keys, defined tags, image files in Object Storage, images, reservations or a network in other
compartments than the cluster's, alarms and logs of OCI, and a budget.
"""


class PolicyStatement(Entry):
    """IAM policy statement with placeholders such as `$group` and `$compartment_id`, and its documentation; `when` is
    the feature that needs it, None if every stack does.
    """

    text: str
    source: str
    when: StackFeature | None = None


class ClusterRule(Entry):
    """Rule of a Kubernetes ClusterRole."""

    api_groups: tuple[str, ...] = Field(alias="apiGroups")
    resources: tuple[str, ...]
    verbs: tuple[str, ...]


class PipelineIdentity(Entry):
    """Permissions of a CI pipeline's identity: policy statements for OCI, and `rules` of a ClusterRole for the
    cluster.
    """

    why: str
    statements: tuple[PolicyStatement, ...]
    rules: tuple[ClusterRule, ...]


class PipelineIdentities(Entry):
    """Permissions of the identities of CI pipelines, by name of the identity."""

    identities: dict[str, PipelineIdentity]


@cache
def pipeline_identities() -> dict[str, PipelineIdentity]:
    """Return the permissions of CI pipelines' identities, by name (`values/iam/pipelines.yaml`)."""
    return required_entry("iam", "pipelines", PipelineIdentities).identities


class FlexiblePrice(Entry):
    """Price per hour of a flexible shape, for each OCPU and for each GB of memory."""

    usd_per_ocpu_hour: NonNegativeFloat
    usd_per_gb_hour: NonNegativeFloat


class BlockVolumePrice(Entry):
    """Price per month of a block or boot volume, for each GB, and for each performance unit (VPU) of each GB."""

    usd_per_gb_month: NonNegativeFloat
    usd_per_vpu_gb_month: NonNegativeFloat
    default_vpus_per_gb: NonNegativeInt

    def usd_per_gb_month_at(self, vpus_per_gb: int | None) -> float:
        """Return the price in US dollars per month of one GB with that many VPUs per GB; with OCI's default number if
        None.
        """
        vpus = self.default_vpus_per_gb if vpus_per_gb is None else vpus_per_gb
        return self.usd_per_gb_month + vpus * self.usd_per_vpu_gb_month


class Prices(Entry):
    """OCI's list prices in US dollars. `as_of` is their date, `not_included` names further costs."""

    as_of: str
    flexible_shapes: dict[str, FlexiblePrice]
    enhanced_cluster_usd_per_hour: NonNegativeFloat
    block_volume: BlockVolumePrice
    hours_per_month: PositiveInt
    not_included: tuple[str, ...]


PRICES = EntryKind("prices", Prices, files=("oci",))


@follows_project
def prices() -> Prices:
    """Return the list prices of the catalogue, or the project's own prices."""
    return entries.required_entry(PRICES, "oci")
