"""vLLM's settings: the one table of them, and the stack file's `engine`, whose keys are its rows."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model
from pydantic.alias_generators import to_camel

from llmd_oke.config.base import ConfigPart, EnvironmentName, Items, is_absent
from llmd_oke.values import Entry, required_entry

SettingValue = bool | int | float | str

_TYPES: Mapping[str, type[SettingValue]] = {"integer": int, "number": float, "text": str, "boolean": bool}


class Flag(Entry):
    """One flag of `vllm serve`; `boolean` has a --no- form, `switch` has none, `optional` may stand without a value.

    `size` is an integer that may end in k, K, m, M, g or G. `default` is vLLM's own.
    """

    kind: Literal["text", "integer", "size", "number", "boolean", "switch", "json", "json-list", "list", "optional"]
    aliases: tuple[str, ...] = ()
    default: SettingValue | None = None
    choices: tuple[str | int, ...] | None = None

    def forms(self, name: str) -> tuple[str, ...]:
        """The words that stand for the flag of that name on vLLM's command line."""
        return (f"--{name}", *([f"--no-{name}"] if self.kind == "boolean" else []), *self.aliases)


class EngineSetting(Entry):
    """A setting of the stack file's `engine`, by the name of vLLM's `flag` without its dashes.

    Values are of `kind`, at least `minimum`, more than `above`, at most `maximum`, or one of `choices`. `default` is
    the kit's own, `since` the first release that has the flag. One without a default leaves no trace in
    `Plan.config_hash` where a stack file leaves it out, unless it is `hashed_if_absent`, as in results that are there.
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
    """A flag that users don't give, because what `instead` names says it."""

    flag: str
    instead: str
    vllm: Flag


class EngineSettings(Entry):
    """`values/vllm/engine-settings.yaml`; arguments have the order of `settings`."""

    settings: tuple[EngineSetting, ...]
    reserved: tuple[ReservedFlag, ...]

    def flags(self) -> dict[str, Flag]:
        """The flags as vLLM's command line has them, by name."""
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
    """`values/vllm/flags.yaml`: the flags that neither are settings nor follow from other keys, in groups, by name."""

    name: str
    groups: dict[str, dict[str, Flag]]


@cache
def further_flags() -> dict[str, Flag]:
    """The flags of vLLM's command line beside those of the table of engine settings, by name."""
    groups = required_entry("vllm", "flags", FurtherFlags).groups.values()
    return {name: flag for group in groups for name, flag in group.items()}


@cache
def known_words() -> frozenset[str]:
    """The words of all flags of vLLM's command line that the kit knows, in all their forms."""
    flags = engine_settings().flags() | further_flags()
    return frozenset(word for name, flag in flags.items() for word in flag.forms(name))


def full_names(flag: str) -> list[str]:
    """The flags that vLLM may take a shortened one for, sorted; none for a name that is one itself, or unknown."""
    known = known_words()
    if not flag.startswith("-") or flag in known:
        return []
    return sorted(word for word in known if word.startswith(flag))


def _definition(setting: EngineSetting) -> Any:
    """A row as pydantic's type and field."""
    literal: Any = Literal
    type_: Any = literal[setting.choices] if setting.choices else _TYPES[setting.kind]
    type_ = Annotated[type_, Field(ge=setting.minimum, gt=setting.above, le=setting.maximum)]
    if setting.default is not None:
        return type_, Field(default=setting.default, description=setting.text)
    exclude_if = None if setting.hashed_if_absent else is_absent
    return type_ | None, Field(default=None, description=setting.text, exclude_if=exclude_if)


EngineRows = create_model(
    "EngineRows", __base__=ConfigPart, **{setting.field: _definition(setting) for setting in engine_settings().settings}
)
"""The rows of the table as fields."""

_BY_TABLE: Any = None


GroupId = Annotated[int, Field(ge=0, le=2_147_483_647)]


class EngineUser(ConfigPart):
    """A user that servers run as, in place of the image's, which is root."""

    id: Annotated[int, Field(ge=1, le=2_147_483_647)]
    """Number of the user; the image needs none of that number."""

    groups: Annotated[Items[GroupId], Field(max_length=16)] = ()
    """Numbers of the groups that `/dev/kfd` and `/dev/dri/renderD*` belong to on the nodes (`stat -c %g`), which differ
    from image to image. Without them a server sees no GPU, unless the nodes' runtime gives devices to a pod's user."""


class Engine(EngineRows):
    """vLLM settings that planning depends on, and a way to pass others."""

    if TYPE_CHECKING:  # of the table's fields those that code reads by name
        max_model_len: int | None = _BY_TABLE
        max_num_seqs: int = _BY_TABLE
        gpu_memory_utilization: float = _BY_TABLE
        block_size: int | None = _BY_TABLE

    extra_args: Items[str] = ()
    """Further vLLM arguments, passed as they are to every server of the model; none that the kit sets itself."""

    env: dict[EnvironmentName, str] = Field(default_factory=dict[str, str])
    """Further environment variables of every server; they win over the kit's own."""

    user: Annotated[EngineUser | None, Field(exclude_if=is_absent)] = None
    """A user that servers run as; the image's own, root, if left out."""

    def settings(self) -> dict[str, SettingValue]:
        """The settings that are given or have a default, by field."""
        return {name: value for name in EngineRows.model_fields if (value := getattr(self, name)) is not None}

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
