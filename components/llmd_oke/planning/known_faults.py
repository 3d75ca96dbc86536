"""Settings by which vLLM is known to end or to answer wrongly, by `values/vllm/known-faults.yaml`."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from llmd_bench.deployment import Parallelism
from pydantic import Field

from llmd_oke.catalogue import CatalogueModel, Gpu, Release
from llmd_oke.config.base import EnvironmentName, HttpsUrl
from llmd_oke.config.engine import ROLES, Engine, argument_of, engine_settings, flag_of
from llmd_oke.values import Entry, required_entry


class KnownFault(Entry):
    """A fault of vLLM, and all that it takes to meet it.

    `releases` are those whose vLLM has it, all if left out. `arguments` and `environment` are what servers are given,
    by flag and variable: a part of the value, or None for any. `families` are models by `model_type`, `number_formats`
    those of their weights, and `gpus` architectures of GPUs; `quantized` says that it takes weights that were quantized
    from those of another entry. `kv_connector` says that it takes a KV connector. Settings are refused where something
    else would be `accepted`, else told of.
    """

    text: str
    source: HttpsUrl
    releases: tuple[str, ...] = ()
    arguments: dict[str, str | None] = Field(default_factory=dict[str, str | None])
    environment: dict[EnvironmentName, str] = Field(default_factory=dict[EnvironmentName, str])
    families: tuple[str, ...] = ()
    number_formats: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    quantized: bool = False
    kv_connector: bool = False
    accepted: str | None = None

    def met(
        self,
        release: Release,
        model: CatalogueModel,
        gpu: Gpu,
        engine: Engine,
        given: Sequence[str],
        *,
        kv_connector: bool,
    ) -> tuple[str, str] | None:
        """Return the key of a model in a stack file by which its servers meet the fault, and the value there; None
        where they don't. `given` are vLLM's arguments that follow from other keys.
        """
        if (self.releases and release.name not in self.releases) or (self.kv_connector and not kv_connector):
            return None
        if not self._is_of(model, gpu):
            return None
        catalogued = [*model.arguments, *model.feature_arguments(engine.features)]
        words, variables = [*given, *catalogued, *engine.extra_args], {**model.environment, **engine.env}
        for flag, part in self.arguments.items():
            if (value := _value(words, flag)) is None or (part or "") not in value:
                return None
        if any(part not in variables.get(name, "") for name, part in self.environment.items()):
            return None
        return self._place(engine, variables)

    def _is_of(self, model: CatalogueModel, gpu: Gpu) -> bool:
        """Tell whether a model and the GPUs of its servers are among those that have the fault."""
        named = (
            (self.families, model.architecture.family),
            (self.number_formats, model.weights.format),
            (self.gpus, gpu.architecture),
        )
        return all(not names or name in names for names, name in named) and not (
            self.quantized and model.quantized_from is None
        )

    def _place(self, engine: Engine, variables: Mapping[str, str]) -> tuple[str, str]:
        """Return the first of the settings that the stack file has; the model itself where all are the catalogue's."""
        for i, argument in enumerate(engine.extra_args):
            if flag_of(argument).removeprefix("--") in self.arguments:
                return f"engine.extraArgs[{i}]", argument
        for row, role in itertools.product(engine_settings().settings, ROLES):
            if row.flag in self.arguments and (value := engine.of_role(role).settings().get(row.field)) is not None:
                return engine.key_of(row.field, role), row.written(value)
        for name in self.environment:
            if name in engine.env:
                return f"engine.env.{name}", variables[name]
        return "model", ""


@dataclass(frozen=True)
class MetFault:
    """A fault that servers of a model meet, the key of the model in the stack file by which, and the value there."""

    fault: KnownFault
    key: str
    value: str

    def __str__(self) -> str:
        """Say what happens, and by which source that is known."""
        return f"{self.fault.text} ({self.fault.source})"


class KnownFaults(Entry):
    """Faults of vLLM that are known, as `values/vllm/known-faults.yaml` has them."""

    name: str
    faults: tuple[KnownFault, ...]


def _value(words: Sequence[str], flag: str) -> str | None:
    """Return all that arguments say of a flag, keys of its object too; None where it isn't given."""
    values = [word for word in words if flag_of(word) == f"--{flag}"]
    if not values:
        return None
    plain = argument_of(words, f"--{flag}")
    return " ".join([*values, plain[1] if plain else ""])


@cache
def known_faults() -> tuple[KnownFault, ...]:
    """All known faults."""
    return required_entry("vllm", "known-faults", KnownFaults).faults


def met_faults(
    release: Release,
    model: CatalogueModel,
    gpu: Gpu,
    engine: Engine,
    spreads: Iterable[Parallelism],
    *,
    kv_connector: bool,
) -> Iterator[MetFault]:
    """Find the faults of a release's vLLM that the servers of a model meet on GPUs of a product; `spreads` are those of
    its roles' servers over their GPUs.
    """
    given = [word for spread in spreads for word in spread.arguments]
    backends = {engine.of_role(role).all2all_backend for role in ROLES} - {None}
    given += [f"--all2all-backend={backend}" for backend in sorted(map(str, backends))]
    given += ["--kv-offloading-size"] if engine.kv_cache.host_memory_gib else []
    for fault in known_faults():
        if place := fault.met(release, model, gpu, engine, given, kv_connector=kv_connector):
            yield MetFault(fault, *place)
