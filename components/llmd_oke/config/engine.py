"""vLLM's settings: the one table of them, and the stack file's `engine`, whose keys are its rows."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, create_model
from pydantic.alias_generators import to_camel

from llmd_oke.config.base import ConfigPart, EnvironmentName, Items, is_absent
from llmd_oke.values import Entry, required_entry

SettingValue = bool | int | float | str

Role = Literal["prefill", "decode", "aggregated"]
ROLES: tuple[Role, ...] = get_args(Role)

_TYPES: Mapping[str, type[SettingValue]] = {"integer": int, "number": float, "text": str, "boolean": bool}


class Flag(Entry):
    """One flag of `vllm serve`; `boolean` has a --no- form, `switch` has none, `optional` may stand without a value.

    `size` is an integer that may end in k, K, m, M, g or G. `default` is vLLM's own, `since` and `until` are the
    first and the last release of llm-d whose vLLM has the flag, where not all have.
    """

    kind: Literal["text", "integer", "size", "number", "boolean", "switch", "json", "json-list", "list", "optional"]
    aliases: tuple[str, ...] = ()
    default: SettingValue | None = None
    choices: tuple[str | int, ...] | None = None
    since: str | None = None
    until: str | None = None

    def forms(self, name: str) -> tuple[str, ...]:
        """The words that stand for the flag of that name on vLLM's command line."""
        return (f"--{name}", *([f"--no-{name}"] if self.kind == "boolean" else []), *self.aliases)


class EngineSetting(Entry):
    """A setting of the stack file's `engine`, by the name of vLLM's `flag` without its dashes.

    Values are of `kind`, at least `minimum`, more than `above`, at most `maximum`, or one of `choices`. `default` is
    the kit's own, `since` the first release that has the flag. One without a default leaves no trace in
    `Plan.config_hash` where a stack file leaves it out, unless it is `hashed_if_absent`, as in results that are there.
    Servers of each role may have a value of their own where it is `by_role`.
    """

    flag: str
    text: str
    kind: Literal["integer", "number", "text", "boolean"]
    minimum: int | float | None = None
    above: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[int | str, ...] = ()
    default: SettingValue | None = None
    since: str | None = None
    hashed_if_absent: bool = False
    by_role: bool = False
    vllm: Flag | None = None

    @property
    def field(self) -> str:
        """The field of `Engine` and of `EngineArgs`."""
        return self.flag.replace("-", "_")

    @property
    def path(self) -> str:
        """Path in a model of the stack file."""
        return f"engine.{to_camel(self.field)}"

    def written(self, value: SettingValue) -> str:
        """A value as text."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def read(self, text: str) -> SettingValue:
        """The value that a text says, as `written` writes it.

        Raises:
            ValueError: it is no number where the setting's value is one.
        """
        return text == "true" if self.kind == "boolean" else _TYPES[self.kind](text)

    def argument(self, value: SettingValue) -> str:
        """The argument that gives vLLM a value."""
        if self.kind == "boolean":
            return f"--{self.flag}" if value else f"--no-{self.flag}"
        return f"--{self.flag}={self.written(value)}"


class ReservedFlag(Entry):
    """A flag of vLLM that users may not give: `instead` names the key of the stack file that says the same."""

    flag: str
    instead: str
    vllm: Flag


class EngineSettings(Entry):
    """The table of vLLM's settings (`values/vllm/engine-settings.yaml`), and of flags that are not for users. Servers
    get the arguments of settings in the table's order.
    """

    settings: tuple[EngineSetting, ...]
    reserved: tuple[ReservedFlag, ...]

    def flags(self) -> dict[str, Flag]:
        """Flags of settings and reserved ones, as vLLM's command line has them, by name without dashes."""
        of_settings = {row.flag: row.vllm or Flag(kind=row.kind) for row in self.settings}
        return of_settings | {row.flag: row.vllm for row in self.reserved}

    def taken(self) -> dict[str, str]:
        """Return what the stack file has in place of an argument, by the argument's name in all its forms."""
        instead = {row.flag: row.path for row in self.settings} | {row.flag: row.instead for row in self.reserved}
        return {form: instead[name] for name, flag in self.flags().items() for form in flag.forms(name)}


@cache
def engine_settings() -> EngineSettings:
    """The table of engine settings."""
    return required_entry("vllm", "engine-settings", EngineSettings)


class FurtherFlags(Entry):
    """The table of all other flags of vLLM (`values/vllm/flags.yaml`), in groups and by name: those that are neither
    settings nor reserved.
    """

    name: str
    groups: dict[str, dict[str, Flag]]


@cache
def further_flags() -> dict[str, Flag]:
    """The flags of vLLM's command line beside those of the table of engine settings, by name."""
    groups = required_entry("vllm", "flags", FurtherFlags).groups.values()
    return {name: flag for group in groups for name, flag in group.items()}


@cache
def flags_by_name() -> Mapping[str, Flag]:
    """The flags of vLLM's command line that the kit knows, settings and all others, by name."""
    return engine_settings().flags() | further_flags()


@cache
def flags_by_word() -> Mapping[str, Flag]:
    """The flags of vLLM's command line that the kit knows, by each word that stands for one."""
    return {word: flag for name, flag in flags_by_name().items() for word in flag.forms(name)}


def full_names(flag: str) -> list[str]:
    """Return the flags that vLLM could take a shortened flag for, sorted; none where it is a flag itself, or begins
    none.
    """
    known = flags_by_word()
    if not flag.startswith("-") or flag in known:
        return []
    return sorted(word for word in known if word.startswith(flag))


def _definition(setting: EngineSetting, *, of_role: bool = False) -> Any:
    """A row as pydantic's type and field; of a role without a default, as the setting of all roles holds then."""
    literal: Any = Literal
    type_: Any = literal[setting.choices] if setting.choices else _TYPES[setting.kind]
    type_ = Annotated[type_, Field(ge=setting.minimum, gt=setting.above, le=setting.maximum)]
    if setting.default is not None and not of_role:
        return type_, Field(default=setting.default, description=setting.text)
    exclude_if = None if setting.hashed_if_absent and not of_role else is_absent
    return type_ | None, Field(default=None, description=setting.text, exclude_if=exclude_if)


EngineRows = create_model(
    "EngineRows", __base__=ConfigPart, **{setting.field: _definition(setting) for setting in engine_settings().settings}
)
"""Keys of the stack file's `engine` that are rows of the table of settings, as fields of pydantic."""

RoleRows = create_model(
    "RoleRows",
    __base__=ConfigPart,
    **{row.field: _definition(row, of_role=True) for row in engine_settings().settings if row.by_role},
)
"""Keys of `engine.prefill`, `engine.decode` and `engine.aggregated` that are rows of that table, as fields."""

_BY_TABLE: Any = None


GroupId = Annotated[int, Field(ge=0, le=2_147_483_647)]


class EngineUser(ConfigPart):
    """A user that servers run as, in place of the image's, which is root."""

    id: Annotated[int, Field(ge=1, le=2_147_483_647)]
    """Number of the user; the image needs none of that number."""

    groups: Annotated[Items[GroupId], Field(max_length=16)] = ()
    """Numbers of the groups that `/dev/kfd` and `/dev/dri/renderD*` belong to on the nodes (`stat -c %g`), which differ
    from image to image. Without them a server sees no GPU, unless the nodes' runtime gives devices to a pod's user."""


KvConnectorName = Literal["nixl", "mori-io", "mooncake"]
"""Libraries by which KV cache is handed over; `values/releases` says which release has which, and what it takes."""


class KvCache(ConfigPart):
    """Ways that KV cache takes between servers, and where it stays beside the memory of their GPUs."""

    connector: Annotated[KvConnectorName, Field(exclude_if=lambda name: name == "nixl")] = "nixl"
    """By what prefill servers hand KV cache to decode servers."""

    host_memory_gib: Annotated[int | None, Field(ge=1, le=16384, exclude_if=is_absent)] = None
    """GiB of its node's memory in which each prefill or aggregated server keeps KV cache of prompts, so that those that
    begin as earlier ones did aren't computed anew once the GPUs' memory has no room for it. Decode servers have none:
    they get prompts from prefill servers."""


AdapterRank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]
"""Ranks that vLLM makes room for (vllm/config/lora.py: MaxLoRARanks)."""


class AdapterSlots(ConfigPart):
    """Room for LoRA adapters in each server. Servers are started with it, so that another one replaces them; which
    adapters there are is `adapters` of the model, which changes without."""

    slots: Annotated[int, Field(ge=1, le=64)] = 4
    """Adapters whose requests a server computes at a time (vLLM's `--max-loras`). Each takes memory of the GPUs, used
    or not."""

    max_rank: AdapterRank = 16
    """The largest rank of an adapter (vLLM's `--max-lora-rank`), which each slot has room for."""

    host_slots: Annotated[int | None, Field(ge=1, le=1024, exclude_if=is_absent)] = None
    """Adapters that a server keeps in its node's memory (vLLM's `--max-cpu-loras`), from where they get to a slot; as
    many as `slots` if left out. Others are read from the model cache again."""


FeatureName = Literal["tool-calling", "reasoning"]
"""Features of models that vLLM is started with arguments for; `values/models` says which model has them, and how."""


class RoleEngine(RoleRows):
    """vLLM settings of the servers of one role, in place of those of all roles or beside them."""

    extra_args: Items[str] = ()
    """Further vLLM arguments of these servers, after those of all; none that servers must agree on to hand KV cache
    over."""

    env: dict[EnvironmentName, str] = Field(default_factory=dict[str, str])
    """Further environment variables of these servers; they win over those of all."""

    def settings(self) -> dict[str, SettingValue]:
        """The settings that are given, by field."""
        return {name: value for name in RoleRows.model_fields if (value := getattr(self, name)) is not None}


OfRole = Annotated[RoleEngine | None, Field(exclude_if=is_absent)]


class Engine(EngineRows):
    """vLLM settings that planning depends on, and a way to pass others."""

    if TYPE_CHECKING:  # of the table's fields those that code reads by name
        max_model_len: int | None = _BY_TABLE
        max_num_seqs: int = _BY_TABLE
        gpu_memory_utilization: float = _BY_TABLE
        block_size: int | None = _BY_TABLE
        all2all_backend: str | None = _BY_TABLE

    features: Annotated[Items[FeatureName] | None, Field(exclude_if=is_absent)] = None
    """What servers do beside plain answers: `tool-calling`, calls of a request's tools, and `reasoning`, which stands
    in a field of its own in answers. All that the catalogue knows of the model if left out; none with an empty list."""

    adapters: Annotated[AdapterSlots | None, Field(exclude_if=is_absent)] = None
    """Room for LoRA adapters in each server; none if left out."""

    kv_cache: Annotated[KvCache, Field(exclude_if=lambda own: own == KvCache())] = KvCache()
    """Hand-over of KV cache, and KV cache in the nodes' memory."""

    extra_args: Items[str] = ()
    """Further vLLM arguments, passed as they are to every server of the model; none that the kit sets itself."""

    env: dict[EnvironmentName, str] = Field(default_factory=dict[str, str])
    """Further environment variables of every server; they win over the kit's own."""

    user: Annotated[EngineUser | None, Field(exclude_if=is_absent)] = None
    """A user that servers run as; the image's own, root, if left out."""

    prefill: OfRole = None
    """Settings of prefill servers alone."""

    decode: OfRole = None
    """Settings of decode servers alone."""

    aggregated: OfRole = None
    """Settings of aggregated servers alone."""

    def roles(self) -> dict[Role, RoleEngine]:
        """The roles that have settings of their own."""
        return {role: own for role in ROLES if (own := getattr(self, role)) is not None}

    def of_role(self, role: Role) -> "Engine":
        """The settings of the servers of one role: those of all, with its own in their place or beside them."""
        whole = self.model_copy(update=dict.fromkeys(ROLES))
        own = self.roles().get(role)
        if own is None:
            return whole
        beside = {"extra_args": (*self.extra_args, *own.extra_args), "env": {**self.env, **own.env}}
        return whole.model_copy(update={**own.settings(), **beside})

    def settings(self) -> dict[str, SettingValue]:
        """The settings that are given or have a default, by field."""
        return {name: value for name in EngineRows.model_fields if (value := getattr(self, name)) is not None}

    def key_of(self, field: str, role: Role) -> str:
        """Return the key of a model, by which the stack file gives a setting to the servers of a role: their own, else
        the one of all.
        """
        own = self.roles().get(role)
        part = f"engine.{role}" if own is not None and field in own.settings() else "engine"
        return f"{part}.{to_camel(field)}"

    def argument(self, name: str) -> tuple[int, str] | None:
        """The value that `extraArgs` give an argument, and its position; of several the last, which wins."""
        return argument_of(self.extra_args, name)


def argument_of(arguments: Sequence[str], name: str) -> tuple[int, str] | None:
    """The value that a list of arguments gives to one of them, and its position; of several the last, which wins."""
    last = None
    for i, argument in enumerate(arguments):
        key, mark, value = argument.partition("=")
        if key.replace("_", "-") == name:
            last = i, value if mark else "".join(arguments[i + 1 : i + 2])
    return last


def flag_of(argument: str) -> str:
    """The flag that an argument names, without its value and without the key of an object: `--kv-transfer-config` of
    `--kv_transfer_config.kv_role=kv_both`. Another word than a flag stays as it is.
    """
    return argument.partition("=")[0].partition(".")[0].replace("_", "-") if argument.startswith("-") else argument


DEFAULT_ENGINE = Engine()
"""The settings of a stack file that says nothing of them."""
