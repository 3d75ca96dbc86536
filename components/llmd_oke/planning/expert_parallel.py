"""Checks of the backends by which expert-parallel ranks exchange tokens (`engine.all2AllBackend`), with advice on them,
and of the balancing of experts over ranks.
"""

import math
import re
from collections.abc import Iterator

from llmd_base.errors import Problem

from llmd_oke.catalogue.expert_parallel import All2AllBackend
from llmd_oke.catalogue.releases import release, release_names
from llmd_oke.catalogue.server_settings import exchanges
from llmd_oke.config import Role
from llmd_oke.config.engine import DEFAULT_ENGINE, flag_of
from llmd_oke.planning.model_plan import ModelPlan
from llmd_oke.planning.plan import Advice
from llmd_oke.planning.planned_model import PlannedModel
from llmd_oke.planning.releases import has_own_vllm, used_release

_BALANCING = "--enable-eplb"
_FIELD = "all2all_backend"
_UNEVEN = "allgather_reducescatter"
"""Backend for ranks that have unequal numbers of experts. The others find the rank of an expert by dividing its number
by the experts of a rank (vLLM 0.26 and 0.30, fused_moe/all2all_utils.py), while vLLM gives what remains of a division
to the first ranks (expert_map_manager.py).
"""


def all2all_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for an all-to-all backend that the release lacks, that a model without expert parallelism doesn't
    use, or that needs hardware or settings that the servers don't have.
    """
    used, found = used_release(context.stack), dict[tuple[str, str], Problem]()
    for role in context.model.topology.servers():
        name = context.model.engine.of_role(role).all2all_backend
        if name is None or used is None:
            continue
        path = f"{context.path}.{context.model.engine.key_of(_FIELD, role)}"
        backend = used.vllm.all2all.get(name)
        if backend is None:
            known = (release(each) for each in release_names())
            having = [each.name for each in known if each is not None and name in each.vllm.all2all]
            accepted = ", ".join([*used.vllm.all2all, *([f"or release: {' or '.join(having)}"] if having else [])])
            found[path, accepted] = Problem(path, name, accepted, f"the kit knows of no {name} in {used.name}")
        elif not exchanges(context.parallelism(role)):
            why = f"ranks of {role} servers have no experts that others send tokens to"
            accepted = "nothing, or servers of several ranks with expertParallel, such as tp1dp8ep"
            found[path, accepted] = Problem(path, name, accepted, why)
        else:
            of_role = _of_backend(context, role, path, name, backend)
            found |= {(problem.path, problem.accepted): problem for problem in of_role}
    yield from found.values()


def balancing_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for `--enable-eplb` on servers on which it has no experts to spread, or can't spread them evenly
    over all GPUs: vLLM then ends at its start (0.26 and 0.30, config/parallel.py and fused_moe/layer.py).
    """
    words, experts = context.model.engine.extra_args, context.facts.architecture.experts
    place = next((i for i, word in enumerate(words) if flag_of(word) == _BALANCING), None)
    if place is None:
        return
    path = f"{context.path}.engine.extraArgs[{place}]"
    copies = re.findall(r"num[_-]redundant[_-]experts\D*(\d+)", " ".join(words))
    for role in context.model.topology.servers():
        spread = context.parallelism(role)
        if experts is None or not spread.expert_parallel or spread.gpus == 1:
            accepted = "nothing, or servers of several GPUs with expertParallel, such as tp1dp8ep"
            yield Problem(path, words[place], accepted, f"{role} servers spread no experts over GPUs")
        elif (count := experts.count + int(copies[-1] if copies else 0)) % spread.gpus:
            accepted = f"nothing, or --eplb-config.num_redundant_experts={-experts.count % spread.gpus}"
            why = f"{count} experts can't be spread evenly over the {spread.gpus} GPUs of {role} servers"
            yield Problem(path, words[place], accepted, why)


def all2all_advice(model: ModelPlan, path: str) -> Iterator[Advice]:
    """Yield advice on known drawbacks of the all-to-all backends that a model's expert-parallel servers use, without
    repetitions.
    """
    limits: dict[tuple[str, str], str] = {}
    for role in model.units[0].roles:
        backend = role.settings.all2all
        known = backend.limits if backend else ()
        if backend and backend.over_nodes is not None and role.parallelism.nodes > 1:
            known = (*known, backend.over_nodes)
        limits |= {(model.engine.key_of(_FIELD, role.role), limit.text): limit.source for limit in known}
    for (key, text), source in limits.items():
        yield Advice(f"{path}.{key}", f"{text} ({source})")


def _of_backend(context: PlannedModel, role: Role, path: str, name: str, backend: All2AllBackend) -> Iterator[Problem]:
    spread, engine = context.parallelism(role), context.model.engine
    if spread.nodes > 1 and backend.over_nodes is not None and not has_own_vllm(context.stack):
        accepted = "override.vllmImage with an image of your own, or allgather_reducescatter"
        yield Problem(path, name, accepted, f"{backend.over_nodes.text} ({backend.over_nodes.source})")
    experts = context.facts.architecture.experts
    if experts is not None and experts.count % spread.gpus and name != _UNEVEN:
        accepted = f"{_UNEVEN}, or servers whose GPUs divide {experts.count} experts"
        why = f"{experts.count} experts can't be divided by {spread.gpus} GPUs, and {name} sends tokens to equal parts"
        yield Problem(path, name, accepted, why)
    share, most = engine.of_role(role).gpu_memory_utilization, _largest_share(context, backend)
    if share > most:
        why = f"{name} takes {backend.heap_gib} GiB of each GPU outside of vLLM's share"
        key = f"{context.path}.{engine.key_of('gpu_memory_utilization', role)}"
        yield Problem(key, share, f"at most {most:g}", why)


def _largest_share(context: PlannedModel, backend: All2AllBackend) -> float:
    """Return what vLLM may have of a GPU's memory beside the backend's heap: the kit's default has no more room left
    than other things take.
    """
    share = DEFAULT_ENGINE.gpu_memory_utilization - backend.heap_gib / context.shape.gpu.memory_gib
    return math.floor(share * 100) / 100 if backend.heap_gib else 1.0
