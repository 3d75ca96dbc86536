"""Settings with which vLLM is known to exit or to answer wrongly (`values/vllm/known-faults.yaml`)."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from llmd_base.errors import SET
from llmd_bench.deployment import Parallelism
from pydantic import Field

from llmd_oke.catalogue import CatalogueModel, Gpu, Release
from llmd_oke.config.base import EnvironmentName, HttpsUrl
from llmd_oke.config.engine import ROLES, Engine, engine_settings, flag_of
from llmd_oke.planning.speculation import SPECULATION_FLAGS
from llmd_oke.values import Entry, required_entry


class KnownFault(Entry):
    """Fault of vLLM, with the conditions that must all be met for it to occur.

    Attributes:
        text: consequence of the fault.
        source: source that documents it.
        releases: releases whose vLLM has it; empty for all.
        arguments: arguments that servers must have, by flag: a text that the value contains, or None for any value.
        environment: environment variables that servers must have, each with a text that its value contains, or None
            for any value.
        families: models by `model_type`; empty for all.
        number_formats: number formats of the weights; empty for all.
        gpus: architectures of the GPUs; empty for all.
        quantized: whether the weights must have been quantized from those of another entry.
        kv_connector: whether servers must have a KV connector.
        accepted: accepted alternative to the setting, for the error's text; None if the fault causes advice instead of
            an error.
    """

    text: str
    source: HttpsUrl
    releases: tuple[str, ...] = ()
    arguments: dict[str, str | None] = Field(default_factory=dict[str, str | None])
    environment: dict[EnvironmentName, str | None] = Field(default_factory=dict[EnvironmentName, str | None])
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
    ) -> tuple[str, object] | None:
        """Return the key inside a model of the stack file that causes the fault, and its value; None if the fault
        doesn't occur. `given` has vLLM's arguments that follow from other keys of the stack file.
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
        for name, part in self.environment.items():
            if (value := variables.get(name)) is None or (part or "") not in value:
                return None
        return self._place(engine, variables)

    def _is_of(self, model: CatalogueModel, gpu: Gpu) -> bool:
        """Tell whether the fault concerns this model and GPU."""
        named = (
            (self.families, model.architecture.family),
            (self.number_formats, model.weights.format),
            (self.gpus, gpu.architecture),
        )
        return all(not names or name in names for names, name in named) and not (
            self.quantized and model.quantized_from is None
        )

    def _place(self, engine: Engine, variables: Mapping[str, str]) -> tuple[str, object]:
        """Return the first setting in the stack file that causes the fault; the key `model` if all are in the
        catalogue's entry.
        """
        for i, argument in enumerate(engine.extra_args):
            if _name(argument) in self.arguments:
                return f"engine.extraArgs[{i}]", argument
        if engine.speculation is not None and "speculative-config" in self.arguments:
            return "engine.speculation", SET
        for row, role in itertools.product(engine_settings().settings, ROLES):
            if row.flag in self.arguments and (value := engine.of_role(role).settings().get(row.field)) is not None:
                return engine.key_of(row.field, role), row.written(value)
        for name in self.environment:
            if name in engine.env:
                return f"engine.env.{name}", variables[name]
        return "model", ""


@dataclass(frozen=True)
class MetFault:
    """Fault of vLLM to which a model's servers are exposed, with the key inside the model's stack-file entry and the
    value that cause it.
    """

    fault: KnownFault
    key: str
    value: object

    def __str__(self) -> str:
        """Return the fault's consequence with its source."""
        return f"{self.fault.text} ({self.fault.source})"


class KnownFaults(Entry):
    """Table of known faults of vLLM (`values/vllm/known-faults.yaml`)."""

    name: str
    faults: tuple[KnownFault, ...]


def _name(argument: str) -> str:
    """Return the name under which faults have an argument: without dashes, and one for all flags of speculation."""
    flag = flag_of(argument)
    return "speculative-config" if flag in SPECULATION_FLAGS else flag.removeprefix("--")


def _value(words: Sequence[str], name: str) -> str | None:
    """Return all values of an argument in a list of arguments, including keys of its JSON object, joined by spaces;
    None if the argument is missing.
    """
    pairs = zip(words, [*words[1:], ""], strict=True)
    values = [word if "=" in word else f"{word} {following}" for word, following in pairs if _name(word) == name]
    return " ".join(values) or None


@cache
def known_faults() -> tuple[KnownFault, ...]:
    """Return all known faults of vLLM."""
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
    """Yield the known faults of a release's vLLM to which a model's servers on a GPU are exposed; `spreads` has the
    parallelism of each role.
    """
    given = [word for spread in spreads for word in spread.arguments]
    backends = {engine.of_role(role).all2all_backend for role in ROLES} - {None}
    given += [f"--all2all-backend={backend}" for backend in sorted(map(str, backends))]
    given += ["--kv-offloading-size"] if engine.kv_cache.host_memory_gib else []
    if draft := model.server_draft(engine.speculation):
        given += [f"--speculative-config={draft.draft.method}", *draft.draft.arguments]
    for fault in known_faults():
        if place := fault.met(release, model, gpu, engine, given, kv_connector=kv_connector):
            yield MetFault(fault, *place)
