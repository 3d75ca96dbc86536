"""Settings of an organisation's policies, read from `policies/policies.yaml` of a project: allowed values
and levels.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from llmd_base.errors import InvalidStack, Problem
from pydantic import Field, StringConstraints, ValidationError

from llmd_oke.config import shape_problems, yaml_files
from llmd_oke.config.base import ConfigPart, Items, Region
from llmd_oke.planning import Plan
from llmd_oke.values import POLICY_PACK

POLICIES_FILE = f"{POLICY_PACK}/policies.yaml"
"""Path in a project of the file with an organisation's settings of the policies."""

Level = Literal["off", "advisory", "mandatory"]

PolicyName = Literal[
    "public-endpoints",
    "client-authentication",
    "required-tags",
    "monthly-cost",
    "plain-secrets",
    "protection",
    "regions",
    "shapes",
    "image-digests",
    "network-policies",
]

Text = Annotated[str, StringConstraints(min_length=1)]


Choices = TypeVar("Choices", bound=ConfigPart)


class Organisation(ConfigPart):
    """Settings of an organisation's policies. By default every policy is advisory, and no region, shape or price is
    forbidden.
    """

    levels: dict[PolicyName, Level] = Field(default_factory=dict[PolicyName, Level])
    """Levels by policy: violations of `mandatory` ones refuse a stack, of `advisory` ones are shown as advice, of `off`
    ones are ignored; `advisory` if left out.
    """

    public_api: bool = False
    """Whether clusters may have a public API endpoint."""

    required_tags: Items[Text] = ()
    """Tags that each OCI resource must have if its type has tags: `key` for a free-form tag, `Namespace.Key` for a
    defined one.
    """

    monthly_usd: Annotated[float, Field(gt=0)] | None = None
    """Maximum list price of a stack per month in US dollars; no maximum if left out."""

    regions: Items[Region] = ()
    """Regions in which stacks may create resources; any if left out."""

    shapes: Items[Text] = ()
    """Shapes that nodes may have; any if left out."""

    protected: Items[Literal["cluster", "pools", "network", "file-systems"]] = ("cluster", "pools", "network")
    """Kinds of resources that must be protected from deletion and replacement."""

    tags_suffice: Items[Text] = ()
    """Prefixes of names of images that need no digest, such as `registry.example.com/`."""

    def level(self, policy: PolicyName) -> Level:
        """Return the level of a policy: mandatory, advisory or off."""
        return self.levels.get(policy, "advisory")


def with_policies(project: Path, stack: str, plan: Plan) -> Plan:
    """Return a plan after applying the project's policies: violations of advisory policies are advice. Without a policy
    pack in the project the plan is returned unchanged, and Pulumi isn't imported.

    Raises:
        InvalidStack: the stack violates mandatory policies, or the policies' file is invalid.
        KitError: the program refuses the stack, or can't be declared here.
    """
    organisation = read_organisation(project)
    if organisation is None:
        return plan
    from llmd_oke.policies.applied import judged_plan  # noqa: PLC0415 - loads Pulumi

    return judged_plan(project, stack, plan, organisation)


def read_organisation(project: Path) -> Organisation | None:
    """Return the settings of a project's policies: None without a policy pack, the defaults for a pack without the
    file.

    Raises:
        KitError: the file can't be read, or is not YAML.
        InvalidStack: the file is invalid; carries every problem, with lines.
    """
    if not (project / POLICY_PACK).is_dir():
        return None
    if not (project / POLICIES_FILE).is_file():
        return Organisation()
    return read_choices(project, POLICIES_FILE, Organisation, "the policies can't be applied")


def read_choices(
    project: Path,
    name: str,
    kind: type[Choices],
    verdict: str,
    problems_of: Callable[[Choices], Iterable[Problem]] = lambda _: (),
) -> Choices:
    """Read a file of a project with an organisation's choices.

    Args:
        project: directory of Pulumi.yaml.
        name: path of the file in the project.
        kind: type of the file's content.
        verdict: beginning of the error for a wrong file.
        problems_of: finds further problems in content that has the file's format.

    Raises:
        KitError: the file can't be read, or is not YAML.
        InvalidStack: it is wrong; carries every problem, with lines.
    """
    document = yaml_files.read(project / name)
    try:
        choices = kind.model_validate(document.value or {}, by_alias=True, by_name=False)
        found = list(problems_of(choices))
    except ValidationError as error:
        found = shape_problems.problems(error.errors(), document.value, kind)
        choices = None
    if choices is None or found:
        located = [
            Problem(item.path, item.value, item.accepted, item.why, document.line(item.path), name) for item in found
        ]
        raise InvalidStack(located, verdict)
    return choices
