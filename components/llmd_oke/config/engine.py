"""Table of vLLM's settings (`values/vllm`), and the stack file's `engine`, whose keys are rows of that table."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, create_model
from pydantic.alias_generators import to_camel

from llmd_oke.config.base import Commit, ConfigPart, EnvironmentName, Items, is_absent
from llmd_oke.values import Entry, entry_reader, required_entry

SettingValue = bool | int | float | str

Role = Literal["prefill", "decode", "aggregated"]
ROLES: tuple[Role, ...] = get_args(Role)

_TYPES: Mapping[str, type[SettingValue]] = {"integer": int, "number": float, "text": str, "boolean": bool}


class Flag(Entry):
    """Definition of one flag of `vllm serve`, keyed by the flag's name without dashes.

    Attributes:
        kind: type of the value. `boolean` has a --no- form, `switch` takes no value, `optional` may stand without its
            value, `size` is an integer that may end in k, K, m, M, g or G.
        aliases: other spellings of the flag.
        default: vLLM's default.
        choices: accepted values; None if any value of `kind` is accepted.
        since: first release of llm-d whose vLLM has the flag; None if the first known release has it.
        until: last release of llm-d whose vLLM has the flag; None if the latest release has it.
    """

    kind: Literal["text", "integer", "size", "number", "boolean", "switch", "json", "json-list", "list", "optional"]
    aliases: tuple[str, ...] = ()
    default: SettingValue | None = None
    choices: tuple[str | int, ...] | None = None
    since: str | None = None
    until: str | None = None

    def forms(self, name: str) -> tuple[str, ...]:
        """Return all spellings on vLLM's command line of the flag with this name: `--name`, `--no-name` and aliases."""
        return (f"--{name}", *([f"--no-{name}"] if self.kind == "boolean" else []), *self.aliases)


class EngineSetting(Entry):
    """Definition of a key of the stack file's `engine`, which corresponds to one flag of vLLM.

    Attributes:
        flag: name of vLLM's flag without leading dashes.
        text: description of the key, for the schema and the reference.
        kind: type of the value.
        minimum: smallest accepted number.
        above: exclusive lower limit of the number.
        maximum: largest accepted number.
        choices: accepted values; empty if the limits alone apply.
        default: the kit's default; None if vLLM's default applies.
        since: first release of llm-d whose vLLM has the flag; None if all known releases have it.
        hashed_if_absent: whether `Plan.config_hash` contains the key even where the stack file omits it, which keeps
            the hash of earlier results.
        by_role: whether servers of one role may have a different value (`engine.prefill` and so on).
        vllm: vLLM's definition of the flag; None if it follows from `kind`.
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
        """Name of the setting's field in `Engine` and `EngineArgs`."""
        return self.flag.replace("-", "_")

    @property
    def path(self) -> str:
        """Path of the key inside an entry of `models`."""
        return f"engine.{to_camel(self.field)}"

    def written(self, value: SettingValue) -> str:
        """Return the value as text, as vLLM's command line has it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return f"{value:.15g}" if isinstance(value, float) else str(value)

    def read(self, text: str) -> SettingValue:
        """Return the value in a text that `written` returned.

        Raises:
            ValueError: the setting is a number and the text is not.
        """
        return text == "true" if self.kind == "boolean" else _TYPES[self.kind](text)

    def argument(self, value: SettingValue) -> str:
        """Return vLLM's command-line argument that sets this value."""
        if self.kind == "boolean":
            return f"--{self.flag}" if value else f"--no-{self.flag}"
        return f"--{self.flag}={self.written(value)}"


class ReservedFlag(Entry):
    """Flag of vLLM that `extraArgs` may not contain because the kit sets it; `instead` names the stack file's key with
    the same effect.
    """

    flag: str
    instead: str
    vllm: Flag


class EngineSettings(Entry):
    """Table of vLLM's settings (`values/vllm/engine-settings.yaml`), with the flags that users may not pass. Servers
    get the arguments in the table's order.
    """

    settings: tuple[EngineSetting, ...]
    reserved: tuple[ReservedFlag, ...]

    def flags(self) -> dict[str, Flag]:
        """Return vLLM's flags for the settings and the reserved flags, by flag name without dashes."""
        of_settings = {row.flag: row.vllm or Flag(kind=row.kind) for row in self.settings}
        return of_settings | {row.flag: row.vllm for row in self.reserved}

    def taken(self) -> dict[str, str]:
        """Return the stack file's key that replaces an argument, by each spelling of the argument."""
        instead = {row.flag: row.path for row in self.settings} | {row.flag: row.instead for row in self.reserved}
        return {form: instead[name] for name, flag in self.flags().items() for form in flag.forms(name)}


engine_settings = entry_reader("vllm", "engine-settings", EngineSettings)
"""Return the table of vLLM's settings, with the flags that users may not pass."""


class FurtherFlags(Entry):
    """Table of all flags of vLLM that are neither settings nor reserved (`values/vllm/flags.yaml`), by group and flag
    name.
    """

    name: str
    groups: dict[str, dict[str, Flag]]


@cache
def further_flags() -> dict[str, Flag]:
    """Return the flags of vLLM that are neither settings nor reserved, by flag name."""
    groups = required_entry("vllm", "flags", FurtherFlags).groups.values()
    return {name: flag for group in groups for name, flag in group.items()}


@cache
def flags_by_name() -> Mapping[str, Flag]:
    """Return all flags of vLLM that the kit knows, by flag name without dashes."""
    return engine_settings().flags() | further_flags()


@cache
def flags_by_word() -> Mapping[str, Flag]:
    """Return all flags of vLLM that the kit knows, by each spelling on the command line."""
    return {word: flag for name, flag in flags_by_name().items() for word in flag.forms(name)}


def full_names(flag: str) -> list[str]:
    """Return the full spellings that a shortened flag could stand for, sorted; empty if `flag` is a full flag or no
    flag begins with it.
    """
    known = flags_by_word()
    if not flag.startswith("-") or flag in known:
        return []
    return sorted(word for word in known if word.startswith(flag))


def _definition(setting: EngineSetting, *, of_role: bool = False) -> Any:
    """Return the pydantic type and field of a setting. In `engine.ROLE` (`of_role`) the field has no default: without
    it, the setting of all roles applies.
    """
    literal: Any = Literal
    type_: Any = literal[setting.choices] if setting.choices else _TYPES[setting.kind]
    type_ = Annotated[type_, Field(ge=setting.minimum, gt=setting.above, le=setting.maximum)]
    if setting.default is not None and not of_role:
        return type_, Field(default=setting.default, description=setting.text)
    exclude_if = None if setting.hashed_if_absent else is_absent
    return type_ | None, Field(default=None, description=setting.text, exclude_if=exclude_if)


EngineRows = create_model(
    "EngineRows", __base__=ConfigPart, **{setting.field: _definition(setting) for setting in engine_settings().settings}
)
"""Base class of `Engine` with a pydantic field for each row of the table of settings."""

RoleRows = create_model(
    "RoleRows",
    __base__=ConfigPart,
    **{row.field: _definition(row, of_role=True) for row in engine_settings().settings if row.by_role},
)
"""Base class of `RoleEngine` with a pydantic field for each row of the table of settings that may differ between roles.
"""

_BY_TABLE: Any = None


GroupId = Annotated[int, Field(ge=0, le=2_147_483_647)]


class EngineUser(ConfigPart):
    """User and groups that vLLM's containers run as, in place of the image's default user, root."""

    id: Annotated[int, Field(ge=1, le=2_147_483_647)]
    """Numeric user ID (UID). The image's `/etc/passwd` needs no entry for it."""

    groups: Annotated[Items[GroupId], Field(max_length=16)] = ()
    """Numeric IDs of the groups that own `/dev/kfd` and `/dev/dri/renderD*` on the nodes (`stat -c %g`); they depend on
    the nodes' image. Without these groups a server can't open the GPUs, unless the container runtime gives the devices
    to the pod's user.
    """


KvConnectorName = Literal["nixl", "mori-io", "mooncake"]
"""Library that transfers KV cache between servers; `values/releases` lists those of each release, with their
requirements.
"""


class KvCache(ConfigPart):
    """Transfer of KV cache between servers, and KV cache in the nodes' memory and on their disks."""

    connector: Annotated[KvConnectorName, Field(exclude_if=lambda name: name == "nixl")] = "nixl"
    """Library (vLLM's KV connector) by which prefill servers transfer KV cache to decode servers."""

    host_memory_gib: Annotated[int | None, Field(ge=1, le=16384, exclude_if=is_absent)] = None
    """Host memory in GiB in which each prefill or aggregated server keeps the KV cache of earlier prompts, so that a
    prompt with the same beginning isn't computed again after the cache in GPU memory was evicted; none if left out.
    Decode servers keep none: they receive their prompts' KV cache from prefill servers.
    """

    disk_gib: Annotated[int | None, Field(ge=1, le=65536, exclude_if=is_absent)] = None
    """Space in GiB on each node's local disks for KV cache in files, for all prefill or aggregated servers of the model
    on the node; files that were written or read longest ago are deleted first. None if left out. Needs
    `hostMemoryGib`, through which vLLM writes and loads it, and a `storage.modelCache` of kind `node-disk`.
    """


AdapterRank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]
"""LoRA ranks for which vLLM can reserve memory (vllm/config/lora.py: MaxLoRARanks)."""


class AdapterSlots(ConfigPart):
    """Memory for LoRA adapters in each server. A change restarts the servers; a change of the adapters themselves
    (`adapters` of the model) doesn't.
    """

    slots: Annotated[int, Field(ge=1, le=64)] = 4
    """Number of adapters whose requests a server computes in the same step (vLLM's `--max-loras`). Each slot reserves
    GPU memory, used or not.
    """

    max_rank: AdapterRank = 16
    """Largest rank of an adapter (vLLM's `--max-lora-rank`). Each slot reserves memory for this rank."""

    host_slots: Annotated[int | None, Field(ge=1, le=1024, exclude_if=is_absent)] = None
    """Number of adapters that a server keeps in its node's memory, from which they are loaded into a slot (vLLM's
    `--max-cpu-loras`); equal to `slots` if left out. Other adapters are read from the model cache again when a request
    needs them.
    """


class Speculation(ConfigPart):
    """Speculative decoding: a draft proposes tokens, which the model checks in one step (`--speculative-config`). It
    applies to servers of all roles, since servers that differ in it can't transfer KV cache to each other.
    """

    tokens: Annotated[int | None, Field(ge=1, le=16, exclude_if=is_absent)] = None
    """Number of tokens that the draft proposes for each sequence at each step; the number in the catalogue if left out.
    """

    revision: Annotated[Commit | None, Field(exclude_if=is_absent)] = None
    """Commit of the draft's repository on Hugging Face, or revision of its files in a bucket; the catalogue's if left
    out.
    """

    accepted_share: Annotated[float | None, Field(ge=0, le=1, exclude_if=is_absent)] = None
    """Share of the drafted tokens that the model accepts (0 to 1), measured with requests like this stack's. Forecasts
    of speed use it, and ignore speculation if it is left out; servers don't read it.
    """


FeatureName = Literal["tool-calling", "reasoning"]
"""Model feature that vLLM needs start arguments for; `values/models` lists the features of each model, with their
arguments.
"""


class RoleEngine(RoleRows):
    """vLLM settings for the servers of one role, which replace or extend those for all roles."""

    extra_args: Items[str] = ()
    """Additional vLLM arguments for these servers, after the `extraArgs` for all roles. Arguments that prefill and
    decode servers must agree on for the transfer of KV cache are refused.
    """

    env: dict[EnvironmentName, str] = Field(default_factory=dict[str, str])
    """Additional environment variables for these servers; they override those for all roles."""

    def settings(self) -> dict[str, SettingValue]:
        """Return the settings of this role that the stack file has, by field name."""
        return {name: value for name in RoleRows.model_fields if (value := getattr(self, name)) is not None}


OfRole = Annotated[RoleEngine | None, Field(exclude_if=is_absent)]


class Engine(EngineRows):
    """vLLM settings that planning depends on, and additional arguments and environment variables."""

    if TYPE_CHECKING:  # the table's fields that code accesses by name
        max_model_len: int | None = _BY_TABLE
        max_num_seqs: int = _BY_TABLE
        gpu_memory_utilization: float = _BY_TABLE
        block_size: int | None = _BY_TABLE
        all2all_backend: str | None = _BY_TABLE

    features: Annotated[Items[FeatureName] | None, Field(exclude_if=is_absent)] = None
    """Features of the servers besides plain completions: `tool-calling` parses the model's tool calls, `reasoning`
    returns the reasoning text in a separate field of the response. If left out, all features that the catalogue lists
    for the model; with an empty list, none.
    """

    adapters: Annotated[AdapterSlots | None, Field(exclude_if=is_absent)] = None
    """Memory for LoRA adapters in each server; none if left out."""

    speculation: Annotated[Speculation | None, Field(exclude_if=is_absent)] = None
    """Speculative decoding with the draft that the catalogue has for the model (`draft` in `values/models`); none if
    left out.
    """

    kv_cache: Annotated[KvCache, Field(exclude_if=lambda own: own == KvCache())] = KvCache()
    """Transfer of KV cache between servers, and KV cache in the nodes' memory."""

    extra_args: Items[str] = ()
    """Additional vLLM arguments, passed unchanged to every server of the model. Arguments that the kit sets itself are
    refused.
    """

    env: dict[EnvironmentName, str] = Field(default_factory=dict[str, str])
    """Additional environment variables of every server; they override those that the kit sets."""

    user: Annotated[EngineUser | None, Field(exclude_if=is_absent)] = None
    """User and groups that vLLM's containers run as; the image's default user, root, if left out."""

    prefill: OfRole = None
    """Settings for prefill servers only."""

    decode: OfRole = None
    """Settings for decode servers only."""

    aggregated: OfRole = None
    """Settings for aggregated servers only."""

    def roles(self) -> dict[Role, RoleEngine]:
        """Return the settings of each role that has its own, by role."""
        return {role: own for role in ROLES if (own := getattr(self, role)) is not None}

    def parts(self) -> "dict[str, Engine | RoleEngine]":
        """Return these settings and those of each role that has its own, by their keys in a model of the stack file."""
        return {"engine": self, **{f"engine.{role}": own for role, own in self.roles().items()}}

    def of_role(self, role: Role) -> "Engine":
        """Return the settings that apply to one role's servers: those for all roles, with the role's own settings
        replacing or extending them.
        """
        whole = self.model_copy(update=dict.fromkeys(ROLES))
        own = self.roles().get(role)
        if own is None:
            return whole
        beside = {"extra_args": (*self.extra_args, *own.extra_args), "env": {**self.env, **own.env}}
        return whole.model_copy(update={**own.settings(), **beside})

    def settings(self) -> dict[str, SettingValue]:
        """Return the settings that the stack file has or that have a default, by field name."""
        return {name: value for name in EngineRows.model_fields if (value := getattr(self, name)) is not None}

    def key_of(self, field: str, role: Role) -> str:
        """Return the stack-file key, relative to the model's entry, that sets a field of `EngineRows` for the servers
        of a role: the role's own key where it is set, otherwise the key for all roles.
        """
        own = self.roles().get(role)
        part = f"engine.{role}" if own is not None and field in own.settings() else "engine"
        return f"{part}.{to_camel(field)}"

    def argument(self, name: str) -> tuple[int, str] | None:
        """Return the index in `extraArgs` and the value of an argument; of several, the last, which takes effect. None
        if `extraArgs` doesn't contain the argument.
        """
        return argument_of(self.extra_args, name)


def argument_of(arguments: Sequence[str], name: str) -> tuple[int, str] | None:
    """Return the index and the value of an argument in a list of arguments; of several, the last, which takes effect.
    None if the list doesn't contain the argument.
    """
    last = None
    for i, argument in enumerate(arguments):
        key, mark, value = argument.partition("=")
        if key.replace("_", "-") == name:
            last = i, value if mark else "".join(arguments[i + 1 : i + 2])
    return last


def flag_of(argument: str) -> str:
    """Return the flag that an argument sets, without its value and without the key of a JSON object:
    `--kv-transfer-config` for `--kv_transfer_config.kv_role=kv_both`. An argument that is no flag is returned
    unchanged.
    """
    return argument.partition("=")[0].partition(".")[0].replace("_", "-") if argument.startswith("-") else argument


DEFAULT_ENGINE = Engine()
"""Settings of a model whose stack file has no `engine`."""
