"""Which model `llmd-oke bench` loads: one of a deployed stack, or whatever answers at a URL."""

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llmd_oke import planning
from llmd_oke.bench.deployment.metrics import Servers
from llmd_oke.bench.deployment.streams import Api
from llmd_oke.bench.deployment.targets import Target
from llmd_oke.cli import console
from llmd_oke.errors import KitError
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.results.history import ROWS_FILE
from llmd_oke.results.requests import FILE as REQUESTS_FILE

TOKEN_VARIABLE = "LLMD_OKE_BENCH_TOKEN"  # noqa: S105 - the name of a variable

SIGNED_IN_ONCE = (
    "requests go through the API server, all with one token of the kubeconfig's program; OKE's live four minutes, and "
    "later requests fail with 401. Send longer loads with --in-cluster."
)

MODELS_TIMEOUT_S = 10.0


def _nobody_tells() -> Servers:
    return None


@dataclass(frozen=True)
class Subject:
    """What is loaded.

    `input_tokens` and `output_tokens` are for where none are wanted; `facts` belong into rows, None where not enough is
    known for any; the files are where its results are kept by default, and `servers` lists the pods of its servers.
    """

    target: Target
    input_tokens: str = "1024"
    output_tokens: str = "128"
    facts: Mapping[str, Any] | None = None
    requests_file: Path | None = None
    rows_file: Path | None = None
    servers: Callable[[], Servers] = _nobody_tells


def of_stack(project: Path, stack: str, name: str | None, api: Api, reports: Path | None) -> Subject:
    """A model of a deployed stack, with the way to it from here.

    Raises:
        KitError: the stack has no such model, or it is not there.
    """
    from llmd_oke.experiments.deployed.cluster_access import ClusterAccess  # noqa: PLC0415 - not needed for a URL
    from llmd_oke.experiments.deployed.kept_loads import new_folder  # noqa: PLC0415 - not needed for a URL
    from llmd_oke.experiments.deployed.smoke import running_servers  # noqa: PLC0415 - not needed for a URL

    plan = planning.plan_stack_file(project, stack)
    model = choose(plan.models, name)
    access = ClusterAccess(plan.kubeconfig_context)
    way = access.service(plan.namespace, model.name)
    if access.expires(way):
        console.errors().print(f"[yellow]note[/] {SIGNED_IN_ONCE}", soft_wrap=True)
    folder = new_folder(reports or project / "reports", stack)
    return Subject(
        target=Target(way.url, model.model.repository, dict(way.headers), way.verify, api),
        input_tokens=str(model.workload.input_tokens),
        output_tokens=str(model.workload.output_tokens),
        facts=_facts(plan, model),
        requests_file=folder / REQUESTS_FILE,
        rows_file=folder / ROWS_FILE,
        servers=lambda: running_servers(plan, model, access),
    )


def of_url(
    url: str, name: str | None, api: Api, certificates: Path | None, gpu: str | None, gpus: int | None
) -> Subject:
    """What answers at `url`; without `name` the only model that it serves.

    Raises:
        KitError: it can't be asked, or serves several models; the address or the token is none.
    """
    token = _token()
    if "@" in urlsplit(url).netloc:
        raise KitError("--url has a name or a password before its host.", f"A token goes into {TOKEN_VARIABLE}.")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    verify = _authority(certificates) if certificates else True
    model = name or _only_model(url, headers, verify)
    facts = {"model": model, "gpu": gpu, "gpus_counted": gpus} if gpu and gpus else None
    return Subject(Target(url.rstrip("/"), model, headers, verify, api), facts=facts)


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise KitError(
            f"{TOKEN_VARIABLE} has a blank, a control character or a letter outside ASCII.",
            "Set it to the token alone.",
        )
    return token


def choose(models: Sequence[ModelPlan], name: str | None, option: str = "--model") -> ModelPlan:
    """The model of that name, or the only one; `option` is how a command calls the name.

    Raises:
        KitError: there is none, or there are several.
    """
    found = [model for model in models if name in {None, model.name}]
    if len(found) != 1:
        what = "The stack has several models." if name is None else f"The stack has no model {name!r}."
        raise KitError(what, f"Give {option}, one of: {', '.join(model.name for model in models)}.")
    return found[0]


def _facts(plan: Plan, model: ModelPlan) -> dict[str, Any]:
    from llmd_oke.stack.smoke import conditions  # noqa: PLC0415 - loads Pulumi

    return {
        "model": model.model.repository,
        "gpu": plan.pools[0].shape.gpu.product,
        "gpus_counted": model.gpus,
        "topology": str(model.topology),
        "copies": len(model.units),
        **conditions(plan, model),
        "max_num_seqs": model.engine.max_num_seqs,
        "price_usd_per_hour": round(plan.price_usd_per_hour * model.gpus / plan.gpus, 2),
        "config_hash": plan.config_hash,
    }


def _authority(certificates: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(certificates))
    except (OSError, ssl.SSLError) as error:
        raise KitError(f"{certificates} has no certificates: {error}", "Give a PEM file.") from error


def _only_model(url: str, headers: Mapping[str, str], verify: ssl.SSLContext | bool) -> str:
    import httpx  # noqa: PLC0415 - not needed by other commands

    remedy = "Is the address right, and --certificates? With --model NAME its models are not asked for."
    try:
        answer = httpx.get(
            f"{url.rstrip('/')}/v1/models", headers=headers, verify=verify, timeout=MODELS_TIMEOUT_S, trust_env=False
        )
        models = [str(entry["id"]) for entry in answer.raise_for_status().json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise KitError(f"{url} does not tell its models: {error}", remedy) from error
    if len(models) != 1:
        raise KitError(f"{url} serves {len(models)} models: {', '.join(models)}", "Give --model.")
    return models[0]
