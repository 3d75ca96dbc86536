"""A recipe: which deployments are measured under which loads. Data, in `values/recipes` or in a file of the user's."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke import config
from llmd_oke.config.base import Items, Part
from llmd_oke.config.model import MOST_COPIES
from llmd_oke.config.names import DnsLabel

Subject = Literal["end-to-end", "prefill-only", "decode-only"]
Arrival = Literal["closed", "constant", "poisson"]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

DECODE_BENCH = '--kv-transfer-config={"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}'
"""Fills the KV cache of a prompt instead of computing it, so that a server only decodes (vLLM's connector factory)."""


class Deployment(Part):
    """One way to serve a model, with the vLLM settings that differ from the kit's."""

    name: DnsLabel | None = None
    """Name of its objects in the cluster and in results; made from the topology if left out."""

    model: str | None = None
    """Key in the catalogue; the recipe's own model if left out."""

    topology: config.Topology
    """Servers of one unit, in short form (`8p-tp1-4d-tp2`, `agg-tp1-16r`) or in long form."""

    copies: Annotated[int, Field(ge=1, le=MOST_COPIES)] = 1
    """Units side by side."""

    router: config.Router | None = None
    """Endpoint picker and proxy, or none. If left out, one in front of a whole deployment and none in front of servers
    that are measured by themselves."""

    engine: config.Engine = config.Engine()
    """vLLM settings."""

    subject: Subject = "end-to-end"
    """What is under load: `end-to-end`, the whole deployment; `prefill-only`, servers that answer with one token;
    `decode-only`, servers whose prompts are filled in instead of computed (vLLM's DecodeBenchConnector)."""

    loads: Annotated[Items[str], Field(min_length=1)] | None = None
    """Names of the loads that it is measured under; all if left out."""

    @property
    def object_name(self) -> str:
        """Its name: a topology in short form, with a letter in front as Kubernetes wants it."""
        if self.name:
            return self.name
        topology = f"disagg-{self.topology}" if self.topology.disaggregated else str(self.topology)
        role = "" if self.subject == "end-to-end" else f"-{self.subject.removesuffix('-only')}"
        return f"{topology}{role}" + (f"-x{self.copies}" if self.copies > 1 else "")

    @property
    def gpus(self) -> int:
        """GPUs of all its units."""
        return self.topology.gpus * self.copies


class Load(Part):
    """Requests of one length, at one or several levels: users of a closed loop, or rates of an open one."""

    name: DnsLabel
    """Name of the load in results."""

    arrival: Arrival
    """`closed`: a fixed number of requests in flight. `constant`: requests at even intervals. `poisson`: requests of
    independent users."""

    concurrencies: Items[Count] = ()
    """Levels of a closed loop: requests in flight."""

    requests_per_s: Items[Positive] = ()
    """Levels of an open loop: requests offered per second."""

    requests: Count | None = None
    """Requests of each level, at least."""

    duration_s: Positive | None = None
    """Seconds of each level of an open loop, at least."""

    requests_per_user: Count | None = None
    """Requests of each user of a closed loop, at least."""

    steady_state: bool = False
    """Whether only that part counts in which a closed loop had all its users busy, or an open one answers to give and
    requests to send."""

    input_tokens: Count
    """Prompt length (ISL) in tokens."""

    output_tokens: Count
    """Output length (OSL) in tokens."""

    @property
    def levels(self) -> tuple[float, ...]:
        """Users or rates."""
        return self.concurrencies if self.arrival == "closed" else self.requests_per_s

    def requests_at(self, level: float) -> int:
        """Requests that one level sends: enough for each of the limits that the load has, and one for each user."""
        per_level = (self.requests_per_user or 1) if self.arrival == "closed" else (self.duration_s or 0)
        return max(self.requests or 1, round(per_level * level))


class Rehearsal(Part):
    """How a rehearsal of the recipe is made small enough for one machine."""

    time_scale: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Wall seconds for a second of model time; if left out, one at which the machine keeps up with the loads."""

    requests: Count | None = None
    """Requests of each level, at most."""


class Recipe(Part):
    """A list of deployments and a list of loads."""

    description: str
    """What the recipe is for."""

    source: str = ""
    """Where its figures were published."""

    model: str
    """Key in the catalogue of the model that is served."""

    gpus: Count | None = None
    """GPUs that the recipe was made for; those of the stack if left out."""

    deployments: Annotated[Items[Deployment], Field(min_length=1)]
    """What is deployed and measured, one after the other."""

    baseline: str | None = None
    """Name of the deployment that the others are compared with; the first if left out."""

    loads: Annotated[Items[Load], Field(min_length=1)]
    """What each deployment is measured under."""

    seeds: Annotated[Items[int], Field(min_length=1)] = (0,)
    """Every level is measured once for each; more than one gives confidence."""

    slo: config.Slo = config.Slo()
    """Targets that the share of good requests goes by."""

    rehearsal: Rehearsal = Rehearsal()
    """How the recipe is rehearsed."""

    def loads_of(self, deployment: Deployment) -> tuple[Load, ...]:
        """The loads that a deployment is measured under."""
        return tuple(load for load in self.loads if deployment.loads is None or load.name in deployment.loads)

    def named(self, name: str) -> Deployment:
        """The deployment of that name, which must be there."""
        return next(deployment for deployment in self.deployments if deployment.object_name == name)

    def model_of(self, deployment: Deployment) -> config.Model:
        """What a stack file says to have the deployment."""
        loads = self.loads_of(deployment)
        alone = deployment.subject != "end-to-end"
        return config.Model(
            model=deployment.model or self.model,
            name=deployment.object_name,
            topology=deployment.topology,
            copies=deployment.copies,
            router=deployment.router or config.Router(mode="none" if alone else "standalone"),
            workload=config.Workload(
                input_tokens=max(load.input_tokens for load in loads),
                output_tokens=max(load.output_tokens for load in loads),
            ),
            engine=_engine(deployment),
        )


def _engine(deployment: Deployment) -> config.Engine:
    if deployment.subject != "decode-only":
        return deployment.engine
    return deployment.engine.model_copy(update={"extra_args": (*deployment.engine.extra_args, DECODE_BENCH)})
