"""Choice between simulated servers and vLLM itself, and the preparation of a rehearsal with vLLM itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_base.progress import Progress
from llmd_oke import catalogue
from llmd_oke.catalogue import CatalogueModel
from llmd_oke.config import ModelConfig, StackConfig
from llmd_oke.planning.releases import used_release
from llmd_pods.prewarm.places import ENCODINGS

from llmd_rehearsal.real_vllm import environment, tiny_models, topologies
from llmd_rehearsal.real_vllm.differences import real_vllm_data
from llmd_rehearsal.real_vllm.environment import RealVllm
from llmd_rehearsal.real_vllm.servers import RealServers
from llmd_rehearsal.real_vllm.tiny_models import TinyModel
from llmd_rehearsal.real_vllm.topologies import CutStack


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
        empty = authority.with_name("empty")
        empty.mkdir(exist_ok=True)
        encodings = self.files.get(ENCODINGS)
        return RealServers(
            folder=self.vllm.folder, authority=authority, encodings=encodings, empty=empty, values=values
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


_VERDICT = "vLLM itself can't serve this stack on a processor; without --vllm real its servers are simulated"


def choose_stack(config: StackConfig, processors: float, available_gib: int) -> tuple[CutStack, dict[str, TinyModel]]:
    """Return the stack with so few servers that they fit this machine's memory together, and the tiny models that they
    serve, by the repository of the model that each replaces.

    Raises:
        InvalidStack: vLLM itself can't serve the stack; contains all reasons. Raised before anything is installed.
        KitError: this kit doesn't have the version of vLLM, or one server of each role doesn't fit the memory.
    """
    version = real_version(config)
    known = [catalogue.model(model.model) for model in config.models]
    problems = [
        problem
        for index, model in enumerate(config.models)
        for problem in _problems(f"models[{index}]", model, known[index], version)
    ]
    if problems:
        raise InvalidStack(problems, _VERDICT)
    tiny = {model.repository: tiny_models.tiny_model(model, version) for model in filter(None, known)}
    return topologies.cut(config, available_gib, processors), tiny


def _problems(place: str, model: ModelConfig, known: CatalogueModel | None, version: str) -> Iterator[Problem]:
    """Yield the reasons why a version of vLLM can't serve a model of the stack file on a processor."""
    if known and (why := tiny_models.refusal(known, version)):
        families = ", ".join(tiny_models.families(version))
        yield Problem(f"{place}.model", model.model, f"a model of the families {families}", why)
    if model.topology.data_parallel:
        why = (
            "vLLM's builds for processors end at the first request to ranks that share experts (NotImplementedError of "
            "all_gatherv, seen with 0.26 and 0.30)"
        )
        yield Problem(f"{place}.topology", str(model.topology), "a topology without dp", why)
    engine, no_key = model.engine, "no such key"
    if host_gib := engine.kv_cache.host_memory_gib:
        why = "vLLM keeps no KV cache in host memory for a processor (v1/kv_offload/cpu/spec.py)"
        yield Problem(f"{place}.engine.kvCache.hostMemoryGib", host_gib, no_key, why)
    if disk_gib := engine.kv_cache.disk_gib:
        yield Problem(f"{place}.engine.kvCache.diskGib", disk_gib, no_key, "files are written from there alone")
    if engine.speculation:
        yield Problem(f"{place}.engine.speculation", None, no_key, "tiny models have nothing that drafts for them")
    if model.adapters:
        names = ", ".join(adapter.name for adapter in model.adapters)
        yield Problem(f"{place}.adapters", names, no_key, "there are no adapters of tiny models' sizes")
    if model.scaling:
        yield Problem(
            f"{place}.scaling", None, no_key, "memory bounds the number of servers, so that none can be added"
        )


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
