"""Questions of `llmd-oke init`: the options with the same answers, the tenancy's offers, and the assumed defaults."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError, Problem

from llmd_oke import catalogue
from llmd_oke.access import signing
from llmd_oke.access.addresses import ocid_region
from llmd_oke.access.sign_in import Auth
from llmd_oke.catalogue.cluster import availability_domains
from llmd_oke.catalogue.releases import default_release
from llmd_oke.cli import token
from llmd_oke.cli.questions import Answers, Question, form_of
from llmd_oke.cli.topology_search import ServingNeeds
from llmd_oke.config.base import AvailabilityDomain, Cidr, DnsLabel, KubernetesVersion, Ocid, Region
from llmd_oke.operations.first_stack import FirstStack, Target
from llmd_oke.operations.tenancy_offers import Offer, TenancyOffers

MODEL = "gpt-oss-120b"
SHAPE = "BM.GPU.MI300X.8"
WORKLOAD = "4096/256"
GPUS = 16

MOST_GPUS = 256
"""Maximum number of GPUs that are searched for a topology, so that the search takes less than a minute; our choice."""

TTFT_MS, ITL_MS = 2000.0, 50.0
"""Latency limits, as means in milliseconds, that `llmd-oke init` assumes for the time to first token and between tokens
if none are given; our choice.
"""

KUBERNETES_VERSION = "v1.34.2"
"""Kubernetes version of a new cluster if OCI can't be asked: the one in `stacks/Pulumi.reference.yaml`."""

_EXAMPLE = "an example's, which OCI doesn't have: put in yours"
_OF_SERVERS = frozenset({"--model", "--shape", "--workload", "--topology", "--copies"})
_OF_NEW_CLUSTERS = ("kubernetes_version", "availability_domain", "image", "client_cidr")
_LENGTHS = re.compile(r"([1-9][0-9]{0,6})/([1-9][0-9]{0,6})")


class ClusterChoice(StrEnum):
    """Answer to whether the stack creates its cluster or uses an existing one."""

    NEW = "new"
    EXISTING = "existing"


def _one_of(names: Sequence[str]) -> Callable[[str], str | None]:
    return lambda text: None if text in names else f"one of {', '.join(names)}"


def _number(text: str) -> str | None:
    return None if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) else "a number, or 0"


_NAME = Question("--stack", "Name of the stack", form_of(DnsLabel))
_TARGET = Question("--target", "Deploy to oci, or rehearse on this machine (rehearsal)", _one_of(list(Target)))
_CLUSTER = Question("--cluster", "A new or an existing cluster", _one_of(list(ClusterChoice)))
_CLUSTER_ID = Question("--cluster-id", "OCID of the cluster", form_of(Ocid))
_REGION = Question("--region", "Region", form_of(Region))
_COMPARTMENT = Question("--compartment", "OCID of the compartment", form_of(Ocid))
_TENANCY = Question("--tenancy", "OCID of the tenancy", form_of(Ocid))
_VERSION = Question("--kubernetes-version", "Version of Kubernetes", form_of(KubernetesVersion))
_DOMAIN = Question("--availability-domain", "Availability domain of the GPU nodes", form_of(AvailabilityDomain))
_IMAGE = Question("--image", "OCID of the GPU nodes' image", form_of(Ocid))
_CLIENTS = Question(
    "--client-cidr",
    "Your addresses, such as 203.0.113.0/24, which reach the private API server by a bastion; none if empty",
    lambda text: form_of(Cidr)(text) if text else None,
)
_MODEL = Question("--model", "Model (docs/models.md)")
_WORKLOAD = Question(
    "--workload",
    "Tokens of a prompt and of an answer",
    lambda text: None if _LENGTHS.fullmatch(text) else f"tokens in and out, such as {WORKLOAD}",
)
_LOAD = Question("--load", "Requests per second to carry; 0 to say GPUs instead", _number)
_GPUS = Question(
    "--gpus",
    "GPUs to use",
    lambda text: None if re.fullmatch(r"[1-9][0-9]{0,3}", text) and int(text) <= MOST_GPUS else f"1 to {MOST_GPUS}",
)


@dataclass(frozen=True)
class PlaceOptions:
    """Options of `llmd-oke init` for the deployment's target: cluster, region and tenancy."""

    target: Annotated[Target | None, typer.Option("--target", help="OCI, or rehearsals on this machine.")] = None
    cluster: Annotated[ClusterChoice | None, typer.Option("--cluster", help="Create a cluster, or use one.")] = None
    cluster_id: Annotated[str | None, typer.Option("--cluster-id", help="OCID of an existing cluster.")] = None
    region: Annotated[str | None, typer.Option("--region", help="Region; that of OCI's profile if left out.")] = None
    compartment: Annotated[str | None, typer.Option("--compartment", help="OCID of the compartment.")] = None
    tenancy: Annotated[
        str | None, typer.Option("--tenancy", help="OCID of the tenancy; that of OCI's profile if left out.")
    ] = None
    kubernetes_version: Annotated[
        str | None, typer.Option("--kubernetes-version", help="Version of Kubernetes, such as v1.34.2.")
    ] = None
    availability_domain: Annotated[
        str | None, typer.Option("--availability-domain", help="Availability domain of the GPU nodes, its whole name.")
    ] = None
    image: Annotated[str | None, typer.Option("--image", help="OCID of the GPU nodes' image.")] = None
    client_cidr: Annotated[
        str | None, typer.Option("--client-cidr", help="Addresses that reach a private API server by a bastion.")
    ] = None
    auth: token.AuthOption = None
    profile: token.Profile = None


@dataclass(frozen=True)
class ServersOptions:
    """Options of `llmd-oke init` for the model, its load, and its servers."""

    model: Annotated[str | None, typer.Option("--model", help=f"Model of the catalogue; {MODEL} if left out.")] = None
    shape: Annotated[str | None, typer.Option("--shape", help=f"Shape of the GPU nodes; {SHAPE} if left out.")] = None
    workload: Annotated[
        str | None, typer.Option("--workload", help=f"Tokens of prompt and answer; {WORKLOAD} if left out.")
    ] = None
    load: Annotated[float | None, typer.Option("--load", help="Requests per second to carry.", min=0.001, max=1e6)] = (
        None
    )
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            help="GPUs to use, in place of --load; more by --topology and --copies.",
            min=1,
            max=MOST_GPUS,
        ),
    ] = None
    topology: Annotated[
        str | None, typer.Option("--topology", help="Topology such as 8p-tp1-4d-tp2, instead of a search for one.")
    ] = None
    copies: Annotated[int, typer.Option("--copies", help="Copies of --topology.", min=1, max=64)] = 1
    ttft: Annotated[
        float | None,
        typer.Option(
            "--ttft",
            help=f"Limit of the mean time to first token, ms; {TTFT_MS:g} is assumed.",
            min=0.001,
            max=1e6,
        ),
    ] = None
    itl: Annotated[
        float | None,
        typer.Option(
            "--itl",
            help=f"Limit of the mean inter-token latency, ms; {ITL_MS:g} is assumed.",
            min=0.001,
            max=1e6,
        ),
    ] = None


class OciAccess:
    """Access to the tenancy that the options and OCI's configuration name. `refusals` are the reasons why parts of the
    tenancy can't be read.
    """

    def __init__(self, auth: Auth | None, profile: str | None) -> None:
        self.refusals: list[str] = []
        self._auth, self._profile = auth, profile
        self._known: dict[tuple[str, str], TenancyOffers | None] = {}
        try:
            self.home = signing.profile_home(profile)
        except KitError as error:
            self.home = signing.ProfileHome(None, None)
            self._refuse(error)

    def offers(self, region: str, tenancy_id: str) -> TenancyOffers | None:
        """Return the tenancy's offers in a region; None if signing in fails."""
        place = region, tenancy_id
        if not all(place):
            return None
        if place not in self._known:
            try:
                client = token.client_of(token.sign_in_of({}, self._auth, self._profile), region)
                self._known[place] = TenancyOffers(client, tenancy_id, self.refusals)
            except KitError as error:
                self._known[place] = None
                self._refuse(error)
        return self._known[place]

    def _refuse(self, error: KitError) -> None:
        if error.message not in self.refusals:
            self.refusals.append(error.message)


@dataclass(frozen=True)
class FirstAnswers:
    """Answers about a first stack: the stack without a topology if it must be searched, the needs for the search, and
    the assumed defaults as text.

    `needs` is None if the user named a topology. `assumed_limits` is true if the latency limits in `needs` are the
    kit's defaults. `problems` are the invalid answers, in whose place the stack has defaults where there are any.
    """

    stack: FirstStack
    needs: ServingNeeds | None
    assumed_limits: bool
    assumptions: tuple[str, ...]
    problems: tuple[Problem, ...] = ()

    def without_search(self) -> FirstStack:
        """Return the stack with the topology that was named. If none was, or if answers about its servers are invalid,
        it has the smallest servers of the default model, so that all other answers can be judged.
        """
        if self.stack.topology and not _OF_SERVERS & {problem.path for problem in self.problems}:
            return self.stack
        return replace(self.stack, model=MODEL, shape=SHAPE, topology="agg-tp1-1r", copies=1)


def first_answers(
    where: PlaceOptions, servers: ServersOptions, stack: str | None, access: OciAccess, *, asks: bool
) -> FirstAnswers:
    """Return the user's answers about a first stack: from options alone if these suffice, otherwise also from questions
    on the terminal.

    Raises:
        InvalidStack: answers are missing, and others are invalid; contains all problems.
        KitError: answers are missing, and there is no terminal.
    """
    answers = Answers(asks=False)
    result = _collected(answers, where, servers, stack, access)
    if answers.missing and asks and not answers.problems:
        answers = Answers(asks=True)
        result = _collected(answers, where, servers, stack, access)
    answers.require()
    return replace(result, assumptions=tuple(answers.assumptions), problems=tuple(answers.problems))


def _collected(
    answers: Answers, where: PlaceOptions, servers: ServersOptions, stack: str | None, access: OciAccess
) -> FirstAnswers:
    name = answers.answer(_NAME, stack)
    target = answers.answer(_TARGET, where.target, Target.OCI.value, "nothing says rehearsal")
    answers.problems.extend((*_contradictions(servers), *_misplaced(where, target)))
    if target == Target.REHEARSAL:
        place: dict[str, Any] = {"cluster_id": name, "shape": _shape(answers, servers, None)}
    else:
        place = _cluster(answers, where, servers, access)
    models = _one_of(catalogue.model_names())
    model = answers.answer(replace(_MODEL, accepts=models), servers.model, MODEL, "the model of llm-d's guide")
    workload = answers.answer(_WORKLOAD, servers.workload, WORKLOAD, "the lengths of the published scale-out run")
    lengths = match.groups() if (match := _LENGTHS.fullmatch(workload)) else ("1", "1")
    tokens = {"input_tokens": int(lengths[0]), "output_tokens": int(lengths[1])}
    assumed_limits = servers.ttft is None and servers.itl is None and not servers.topology
    limits = (
        {"ttft_ms": TTFT_MS, "itl_ms": ITL_MS} if assumed_limits else {"ttft_ms": servers.ttft, "itl_ms": servers.itl}
    )
    size = {} if servers.topology else _size(answers, servers)
    first = FirstStack(
        name=name,
        target=Target(target) if target in list(Target) else Target.OCI,
        model=model,
        nodes=1,
        topology=servers.topology or "",
        copies=servers.copies,
        release=default_release().name,
        **tokens,
        **limits,
        **place,
    )
    needs = None if servers.topology else ServingNeeds(model, first.shape, **tokens, **limits, **size)
    return FirstAnswers(first, needs, assumed_limits, ())


def _contradictions(servers: ServersOptions) -> Iterator[Problem]:
    """Yield a problem for each option about servers that another one would make meaningless."""
    sizes = {"--topology": servers.topology, "--load": servers.load, "--gpus": servers.gpus}
    given = {option: value for option, value in sizes.items() if value is not None}
    if len(given) > 1:
        first, *others = given
        for option in others:
            yield Problem(
                option, given[option], f"one of {first} and {option}", f"{first} decides how many GPUs are used"
            )
    if servers.copies > 1 and servers.topology is None:
        yield Problem("--copies", servers.copies, "--copies with --topology", "a search decides about copies itself")


def _misplaced(where: PlaceOptions, target: str) -> Iterator[Problem]:
    """Yield a problem for each option about OCI that means nothing for the target or the cluster."""
    if target == Target.REHEARSAL:
        of_oci = [field.name for field in fields(where) if field.name not in {"target", "auth"}]  # auth: LLMD_OKE_AUTH
        for option, value in _given(where, of_oci):
            yield Problem(option, value, "--target oci", "a rehearsal is on this machine and asks nothing of OCI")
        return
    if where.cluster_id is not None and where.cluster == ClusterChoice.NEW:
        yield Problem("--cluster-id", where.cluster_id, "--cluster existing", "a new cluster has no OCID yet")
    if where.cluster == ClusterChoice.EXISTING or (where.cluster is None and where.cluster_id is not None):
        for option, value in _given(where, _OF_NEW_CLUSTERS):
            yield Problem(option, value, "--cluster new", "an existing cluster has its own already")
    region = ocid_region(where.cluster_id or "")
    if region and where.region not in {None, region}:
        yield Problem("--region", where.region, region, "the OCID of --cluster-id names it")


def _given(where: PlaceOptions, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the option and the value of each of these fields that isn't None."""
    for name in names:
        if (value := getattr(where, name)) is not None:
            yield f"--{name.replace('_', '-')}", value


def _size(answers: Answers, servers: ServersOptions) -> dict[str, Any]:
    """Return the requests per second or the number of GPUs, as fields of `ServingNeeds`."""
    if servers.load is None and servers.gpus is None and not answers.asks:
        answers.missing.append("--load or --gpus")
        return {}
    if servers.load is not None:
        return {"requests_per_s": servers.load}
    load = 0.0 if servers.gpus else float(answers.answer(_LOAD, None, "0"))
    given = None if servers.gpus is None else str(servers.gpus)
    return {"requests_per_s": load} if load else {"gpus": int(answers.answer(_GPUS, given, str(GPUS)))}


def _shape(answers: Answers, servers: ServersOptions, offers: TenancyOffers | None) -> str:
    """Return the shape of the GPU nodes. A question on the terminal lists the shapes that the tenancy has
    capacity for.
    """
    question = Question("--shape", "Shape of the GPU nodes", _one_of(catalogue.shape_names()))
    listed = _asked(offers if answers.asks else None, TenancyOffers.shapes)
    return answers.answer(question, servers.shape, SHAPE, offers=listed)


def _cluster(answers: Answers, where: PlaceOptions, servers: ServersOptions, access: OciAccess) -> dict[str, Any]:
    """Return the fields of a first stack about its cluster on OCI."""
    guess, why = ("existing", "") if where.cluster_id else ("new", "no --cluster-id is given")
    choice = answers.answer(_CLUSTER, where.cluster, guess, why)
    tenancy = where.tenancy or access.home.tenancy_id or ""
    if choice == ClusterChoice.EXISTING:
        of_region = access.offers(where.region or access.home.region or "", tenancy) if answers.asks else None
        clusters = _asked(of_region, lambda offers: offers.clusters(where.compartment or tenancy))
        identifier = answers.answer(_CLUSTER_ID, where.cluster_id, offers=clusters)
        return {"cluster_id": identifier, "shape": _shape(answers, servers, None)}
    region = answers.answer(_REGION, where.region, access.home.region, "OCI's profile has it")
    offers = access.offers(region if _REGION.accepts(region) is None else "", tenancy)
    listed = _asked(offers if answers.asks else None, TenancyOffers.compartments)
    compartment = answers.answer(_COMPARTMENT, where.compartment, offers=listed)
    shape = _shape(answers, servers, offers)
    versions = _asked(
        offers,
        lambda known: sorted(
            known.kubernetes_versions(compartment), key=lambda offer: offer.value != KUBERNETES_VERSION
        ),
    )
    domains = _asked(offers, lambda known: known.availability_domains(shape))
    images = _asked(offers, lambda known: known.images(compartment, shape))
    place = region.split("-")[1] if "-" in region else "region"
    return {
        "shape": shape,
        "region": region,
        "compartment_id": compartment,
        "tenancy_id": answers.answer(
            _TENANCY, tenancy or None, "ocid1.tenancy.oc1..example", _EXAMPLE, is_example=True
        ),
        "kubernetes_version": answers.answer(
            _VERSION, where.kubernetes_version, KUBERNETES_VERSION, "OCI was not asked what it offers", versions
        ),
        "availability_domain": answers.answer(
            _DOMAIN,
            where.availability_domain,
            availability_domains().name("Uocm", region, 1),
            "its first part is another one in each tenancy",
            domains,
            is_example=True,
        ),
        "image_id": answers.answer(
            _IMAGE, where.image, f"ocid1.image.oc1.{place}.example", _EXAMPLE, images, is_example=True
        ),
        "client_cidrs": tuple(filter(None, [answers.answer(_CLIENTS, where.client_cidr, "")])),
    }


def _asked(
    offers: TenancyOffers | None, ask: Callable[[TenancyOffers], Sequence[Offer]]
) -> Callable[[], Sequence[Offer]]:
    return tuple if offers is None else lambda: ask(offers)
