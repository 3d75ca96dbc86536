"""What is not real in a rehearsal, in words for reports; and how programs in its pods are told."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType

from llmd_oke.config import CreateCluster, NoModelCache
from llmd_oke.planning import Plan
from llmd_oke.planning.node_scaling import autoscaled_pools
from llmd_oke.prewarm.sources import REHEARSED_VOCABULARY
from llmd_oke.rehearsal.foreign import is_scaled
from llmd_oke.rehearsal.inventory import IN_PODS
from llmd_oke.rehearsal.outside.tiny_models import vocabulary
from llmd_oke.rehearsal.plugins import KubernetesPlugin
from llmd_oke.rehearsal.programs import Program

SIMULATED = ("nodes and their GPUs", "vLLM")
"""What is not real in a rehearsal, whatever its stack."""

SIMULATED_PLUGIN = "Kubernetes plug-in of Pulumi"
SIMULATED_OCI = "OCI and its plug-in of Pulumi"
SIMULATED_SCALING = "scaling by load (ScaledObjects are accepted, and nothing acts on them)"
SIMULATED_NODE_SCALING = "the cluster autoscaler (its add-on is accepted, and nothing adds or takes nodes)"
SIMULATED_WEIGHTS = "weights (tiny files, from a stand-in for where models are kept)"


def simulated(
    plan: Plan, plugin: KubernetesPlugin, placeholders: Mapping[str, int] = MappingProxyType({})
) -> tuple[str, ...]:
    """What is not real in a rehearsal of a plan with that plug-in, whose pods have these images without a program, with
    their number.
    """
    return (
        *SIMULATED,
        *([] if plugin.is_real else [SIMULATED_PLUGIN]),
        *([SIMULATED_OCI] if isinstance(plan.cluster, CreateCluster) else []),
        *([SIMULATED_SCALING] if is_scaled(plan) else []),
        *([SIMULATED_NODE_SCALING] if autoscaled_pools(plan.config) else []),
        *([SIMULATED_WEIGHTS] if _has_weights(plan) else []),
        *(f"{image} (no program, pods: {count})" for image, count in placeholders.items()),
    )


def pod_environment(
    plan: Plan, programs: Mapping[str, Program], plugin: KubernetesPlugin, time_scale: float
) -> dict[str, str]:
    """What programs in pods must know of the rehearsal: a benchmark reports it and measures in model time."""
    from llmd_oke.bench.deployment.circumstances import VARIABLE, Circumstances  # noqa: PLC0415 - words alone do without the bench
    from llmd_oke.results.row import Basis  # noqa: PLC0415 - the same

    ran = {name: programs[name].version for name in IN_PODS}
    how = Circumstances(time_scale, Basis.CALIBRATED, simulated(plan, plugin), ran)
    told = {VARIABLE: how.to_text()}
    for model in plan.models:
        if (real := model.model.vocabulary) is not None:
            told[REHEARSED_VOCABULARY] = hashlib.sha256(vocabulary(real.file, real.bytes)).hexdigest()
    return told


def _has_weights(plan: Plan) -> bool:
    storage = plan.config.storage
    return not isinstance(storage.model_cache, NoModelCache) and storage.prewarm.source != "none"
