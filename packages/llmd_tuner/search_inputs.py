"""Inputs of a search: the workload, the targets, and the GPUs with their data from the catalogue."""

import math
from dataclasses import dataclass, field, fields

from llmd_base.errors import KitError
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue import CatalogueModel, NodeHardware, Shape, gpu_names, model_names, node_of_gpu, shape_names
from llmd_oke.catalogue import model as model_of_name
from llmd_oke.catalogue import shape as shape_of_name
from llmd_oke.catalogue.conditions import DEFAULT_BLOCK_SIZE
from llmd_oke.catalogue.latency_figures import LatencyFigures
from llmd_oke.config.engine import DEFAULT_ENGINE
from llmd_oke.config.model import RouterProfileName
from llmd_oke.planning.conditions import VLLM_DEFAULTS, DeployedConditions
from llmd_oke.planning.server_choices import ServerChoices, possible_servers
from llmd_oke.values import Entry, entry_reader

from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model_of
from llmd_tuner.servers import Room
from llmd_tuner.workload import WorkloadClasses

SLO_FORM = "ttft=MS, itl=MS, e2e=MS and qps=RATE, separated by commas, such as ttft=2000,itl=25,qps=45"


@dataclass(frozen=True)
class Targets:
    """Limits of mean latencies in seconds, and the load to be carried in requests per second; None for what is not
    required.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    requests_per_s: float | None = None

    def __str__(self) -> str:
        """Return the targets in the notation of the command line, such as `ttft=2000,itl=25,qps=45`."""
        parts = (("ttft", self.ttft_s, 1000), ("itl", self.itl_s, 1000), ("e2e", self.e2e_s, 1000))
        shown = [f"{name}={value * scale:g}" for name, value, scale in parts if value is not None]
        return ",".join([*shown, *([f"qps={self.requests_per_s:g}"] if self.requests_per_s else [])])


class Headroom(Entry):
    """Content of `values/tuning/headroom.yaml`: shares of their maximum load up to which prefill and decode servers are
    used.
    """

    prefill_share: float
    decode_share: float


headroom = entry_reader("tuning", "headroom", Headroom)
"""Return the shares of their maximum load up to which prefill and decode servers are used, from
`values/tuning/headroom.yaml`.
"""


@dataclass(frozen=True)
class GpuInventory:
    """GPUs that a deployment may use. `price_usd_per_hour` is the price of one GPU, None if unknown; whole nodes are
    rented.
    """

    gpus: int
    gpus_per_node: int
    price_usd_per_hour: float | None


@dataclass(frozen=True)
class SearchInputs:
    """Inputs that determine the answer of a search for the best deployment."""

    model: LatencyModel
    workload: WorkloadClasses
    targets: Targets
    hardware: GpuInventory
    room: Room
    choices: ServerChoices
    """Kinds of servers that are tried, and their memory."""
    headroom: Headroom = field(default_factory=headroom)
    profile: RouterProfileName = "token-load"
    """Profile of the endpoint picker by which routers choose servers."""
    measured: frozenset[Parallelism] | None = None
    """Parallelisms of the servers whose latencies were measured, while latencies of servers of other parallelisms are
    only lower bounds; None where the latencies of all servers have the same basis.
    """

    def is_bound(self, *spreads: Parallelism) -> bool:
        """Tell whether a server of at least one of these parallelisms has only lower bounds as latencies, while
        latencies of other servers were measured.
        """
        return self.measured is not None and not self.measured.issuperset(spreads)


def parse_targets(text: str) -> Targets:
    """Parse targets in the notation of the command line: `ttft=2000,itl=25,qps=45`.

    Raises:
        KitError: the text has another form.
    """
    names = {"ttft": "ttft_s", "itl": "itl_s", "e2e": "e2e_s", "qps": "requests_per_s"}
    values: dict[str, float] = {}
    for part in filter(None, (text_part.strip() for text_part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in names or not 0 < number < math.inf:
            raise KitError(f"{part!r} is no target.", f"Accepted: {SLO_FORM}.")
        if names[name] in values:
            raise KitError(f"{name} is there twice.", f"Accepted: {SLO_FORM}.")
        values[names[name]] = number if name == "qps" else number / 1000
    return Targets(**values)


def joined(first: Targets, second: Targets) -> Targets:
    """Return latency targets and load with the values of `first`, and with those of `second` where `first` has none."""
    return Targets(
        **{target.name: getattr(first, target.name) or getattr(second, target.name) for target in fields(Targets)}
    )


def known_model(name: str) -> CatalogueModel:
    """Return the catalogue's model with a name.

    Raises:
        KitError: the catalogue has no such model.
    """
    if model := model_of_name(name):
        return model
    raise KitError(f"There is no model {name!r} in the catalogue.", f"Models: {', '.join(model_names())}.")


def known_shape(name: str) -> Shape:
    """Return the catalogue's shape with a name.

    Raises:
        KitError: the catalogue has no such shape.
    """
    if shape := shape_of_name(name):
        return shape
    raise KitError(f"There is no shape {name!r} in the catalogue.", f"Shapes: {', '.join(shape_names())}.")


def known_gpu(product: str) -> NodeHardware:
    """Return the hardware of the nodes that have a GPU product, whose name may be in any case.

    Raises:
        KitError: the catalogue has no such GPU.
    """
    if node := node_of_gpu(gpu_named(product)):
        return node
    raise KitError(f"There is no GPU {product!r} in the catalogue.", f"GPUs: {', '.join(gpu_names())}.")


def gpu_named(product: str) -> str:
    """Return the catalogue's spelling of a GPU product; the name itself where the catalogue doesn't have it."""
    return next((name for name in gpu_names() if name.lower() == product.lower()), product)


def checked_figures(figures: LatencyFigures, model: CatalogueModel, node: NodeHardware) -> LatencyFigures:
    """Return latency figures after checking that they belong to a model and to a node's GPU.

    Raises:
        KitError: they are of another model or GPU.
    """
    if (figures.model, figures.gpu) != (model.name, node.gpu.product):
        expected, actual = f"{model.name} on {node.gpu.product}", f"{figures.model} on {figures.gpu}"
        remedy = f"Without a stack: --model {figures.model} --gpu {figures.gpu}. Else fit rows of {expected}."
        raise KitError(f"The latency figures are of {actual}, not of {expected}.", remedy)
    return figures


def question_of(
    model: CatalogueModel,
    node: NodeHardware,
    figures: LatencyFigures,
    workload: WorkloadClasses,
    targets: Targets,
    gpus: int,
    *,
    max_num_seqs: int = DEFAULT_ENGINE.max_num_seqs,
    choices: ServerChoices | None = None,
    started: DeployedConditions = VLLM_DEFAULTS,
    profile: RouterProfileName = "token-load",
) -> SearchInputs:
    """Return the inputs of a search for the deployment of up to `gpus` GPUs that serves a workload within targets.

    `choices` are the servers that may be used; without them all that the model's sizes and memory allow. `started` are
    the settings of the servers, `profile` is the endpoint picker's profile by which routers pick servers.

    Raises:
        KitError: no server of so many GPUs has room for the model.
    """
    choices = choices or possible_servers(model, node, gpus, DEFAULT_ENGINE.gpu_memory_utilization)
    if not choices.spreads:
        counted = "1 GPU" if gpus == 1 else f"at most {gpus} GPUs"
        message = f"No server of {counted} can be deployed: {model.name} has {model.weights.gib:g} GiB of weights."
        raise KitError(message, f"More GPUs (a {node.name} has {node.gpus}), or a model with smaller weights.")
    return SearchInputs(
        model=latency_model_of(figures, model, node, started.handing_over),
        workload=workload,
        targets=targets,
        hardware=GpuInventory(gpus, node.gpus, node.price_usd_per_gpu_hour),
        room=Room(
            max_num_seqs,
            started.handing_over.block_size or DEFAULT_BLOCK_SIZE,
            started.aggregated.block_size or DEFAULT_BLOCK_SIZE,
        ),
        choices=choices,
        profile=profile,
    )
