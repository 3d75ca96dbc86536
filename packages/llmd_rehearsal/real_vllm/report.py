"""Report on vLLM's own servers in a rehearsal: inputs of the checks, and their results."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llmd_base.errors import KitError
from llmd_oke.catalogue.monitoring import programs as metrics_programs
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.program.models import unit_name
from llmd_oke.program.smoke import smoke_request
from llmd_oke.serving.router import service_name

from llmd_rehearsal.real_vllm.checked_model import ModelFacts, ServerGroup
from llmd_rehearsal.real_vllm.checks import ServerCheck
from llmd_rehearsal.real_vllm.choice import RealRehearsal
from llmd_rehearsal.rehearsal import Prepared, unenforced_policies
from llmd_rehearsal.running_rehearsals import run_command

RESULTS_FILE = "real-vllm.json"
"""Name of the file, in the folder of a stack's reports, with the results of the checks of servers that run vLLM itself.
"""

_CONNECTOR_METRICS = "nixl"


def check_servers(prepared: Prepared, real: RealRehearsal) -> Sequence[ServerCheck]:
    """Check the servers that run vLLM itself from inside the local cluster, write the results to the folder of the
    stack's reports, and return them.

    Raises:
        KitError: the checks ended without a result.
    """
    reports = prepared.project / "reports" / prepared.stack
    reports.mkdir(parents=True, exist_ok=True)
    facts, results = prepared.state / "real-vllm-facts.json", reports / RESULTS_FILE
    enforced = not unenforced_policies(prepared.state)
    plan = prepared.plan
    models = [model_facts(plan, model, real, policies_enforced=enforced) for model in plan.models]
    facts.write_text(json.dumps([asdict(model) for model in models]))
    results.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "llmd_rehearsal.real_vllm.checks", str(facts), str(results)]
    status = run_command(prepared.project, prepared.stack, argv)
    found: list[dict[str, Any]] = json.loads(results.read_text()) if results.is_file() else []
    if not found:
        raise KitError(f"The checks of vLLM's servers ended with {status} and without a result.")
    return [ServerCheck(**item) for item in found]


def model_facts(plan: Plan, model: ModelPlan, real: RealRehearsal, *, policies_enforced: bool) -> ModelFacts:
    """Return the properties of a model (`ModelFacts`) that the checks of its vLLM servers need."""
    request, tiny = smoke_request(plan, model), real.models[model.model.repository]
    roles = {role.role: role for role in model.units[0].roles}
    sizes = {role.parallelism.tensor_parallel_size for role in roles.values()}
    programs = metrics_programs()
    names = [*programs["vllm"].metrics, *(programs[_CONNECTOR_METRICS].metrics if len(roles) > 1 else ())]
    full, windowed = tiny.layers_by_window
    block_size = tiny.block_size or model.block_size
    copies = roles["decode"].parallelism.tensor_parallel_size if tiny.latent and "decode" in roles else 1
    block_bytes = block_size * tiny.layer_bytes_per_token * copies
    return ModelFacts(
        name=model.name,
        namespace=request.namespace,
        service=request.service,
        routers=tuple(service_name(unit_name(plan, model, unit)) for unit in model.units) if model.routed else (),
        policies_enforced=policies_enforced,
        repository=request.model,
        apis=model.model.apis,
        features=tuple(model.model.chosen_features(model.engine.features)),
        calls_by_schema=tiny.vocabulary is None,
        groups=tuple(
            ServerGroup(group.role, group.selector, group.metrics_port)
            for group in request.groups
            if group.role != "router"
        ),
        block_size=block_size,
        full_block_bytes=full * block_bytes,
        windowed_block_bytes=windowed * block_bytes,
        window_tokens=tiny.window_tokens,
        exact=tiny.dtype == "float32" and len(sizes) == 1,
        metrics=tuple(name.removesuffix("_total") for name in names),
    )
