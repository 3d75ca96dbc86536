"""Choice between simulated servers and vLLM itself, and the preparation of a rehearsal with vLLM itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke import catalogue
from llmd_oke.config import StackConfig
from llmd_oke.planning.releases import used_release
from llmd_pods.prewarm.places import ENCODINGS

from llmd_rehearsal.real_vllm import environment, tiny_models, topologies
from llmd_rehearsal.real_vllm.differences import real_vllm_data
from llmd_rehearsal.real_vllm.environment import RealVllm
from llmd_rehearsal.real_vllm.servers import RealServers
from llmd_rehearsal.real_vllm.tiny_models import TinyModel
from llmd_rehearsal.real_vllm.topologies import CutStack


class VllmChoice(StrEnum):
    """Choice of a rehearsal's model servers: simulated, or vLLM itself."""

    SIMULATED = "simulated"
    REAL = "real"


@dataclass(frozen=True)
class RealRehearsal:
    """Prerequisites of a rehearsal with vLLM itself: vLLM's version and Python environment, the stack with so few
    servers that they fit this machine, tiny models by repository, and folders with the files of models and published
    vocabularies.
    """

    version: str
    vllm: RealVllm
    stack: CutStack
    models: Mapping[str, TinyModel]
    files: Mapping[str, Path]

    def servers(self, authority: Path) -> RealServers:
        """Return the settings with which the node agent starts servers that run vLLM itself; `authority` is the PEM
        file with the certificate authority of the stand-ins for hosts outside the cluster.
        """
        values = {repository: model.server_values for repository, model in self.models.items()}
        return RealServers(
            folder=self.vllm.folder, authority=authority, encodings=self.files.get(ENCODINGS), values=values
        )


def real_version(config: StackConfig) -> str:
    """Return the version of vLLM in a stack's release.

    Raises:
        KitError: the kit can't install this version.
    """
    release, known = used_release(config), real_vllm_data().versions
    tag = release.vllm.image.tag if release else "of an unknown release"
    if tag.removeprefix("v") not in known:
        raise KitError(
            f"{config.release} serves with vLLM {tag}, and this kit has vLLM {', '.join(known)} itself.",
            "Rehearse it with simulated servers, or with a release of such a version.",
        )
    return tag.removeprefix("v")


def choose_stack(config: StackConfig, processors: float, available_gib: int) -> tuple[CutStack, dict[str, TinyModel]]:
    """Return the stack with so few servers that they fit this machine's memory together, and the tiny models that they
    serve, by the repository of the model that each replaces.

    Raises:
        KitError: the stack can't be rehearsed with vLLM itself; raised before anything is installed.
    """
    version = real_version(config)
    if ranked := [model.model for model in config.models if model.topology.data_parallel]:
        raise KitError(
            f"{', '.join(ranked)}: vLLM's builds for processors end at the first request to ranks that share experts "
            "(NotImplementedError of all_gatherv, seen with 0.26 and 0.30).",
            "Leave out data parallelism in the stack file that is rehearsed so, or rehearse with simulated servers.",
        )
    if kept := [model.model for model in config.models if model.engine.kv_cache.host_memory_gib]:
        raise KitError(
            f"{', '.join(kept)}: vLLM keeps no KV cache in host memory for a processor (v1/kv_offload/cpu/spec.py).",
            "Leave engine.kvCache.hostMemoryGib out in the stack file that is rehearsed so, or rehearse with simulated "
            "servers.",
        )
    if drafting := [model.model for model in config.models if model.engine.speculation]:
        raise KitError(
            f"{', '.join(drafting)}: tiny models have nothing that drafts for them.",
            "Leave engine.speculation out in the stack file that is rehearsed so, or rehearse with simulated servers.",
        )
    known = filter(None, (catalogue.model(model.model) for model in config.models))
    tiny = {model.repository: tiny_models.tiny_model(model, version) for model in known}
    return topologies.cut(config, available_gib, processors), tiny


def prepare(stack: CutStack, models: Mapping[str, TinyModel], progress: Progress) -> RealRehearsal:
    """Install vLLM on this machine if it isn't installed yet, create the tiny models' files, and return both for the
    rehearsal of `stack`.

    Raises:
        KitError: vLLM can't be installed on this machine.
    """
    version = real_version(stack.asked)
    vllm = environment.ensure(version, progress)
    files = {repository: tiny_models.ensure_files(vllm, model, progress) for repository, model in models.items()}
    published = [model.vocabulary for model in models.values() if model.vocabulary]
    if published:
        files[ENCODINGS] = tiny_models.vocabulary_folder(published[0], progress)
    return RealRehearsal(version, vllm, stack, models, files)
