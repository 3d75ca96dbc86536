"""An organisation's choices for its policies (`policies/policies.yaml` of a project): what is allowed, and levels."""

from pathlib import Path
from typing import Annotated, Literal

from llmd_base.errors import InvalidStack, Problem
from pydantic import Field, StringConstraints, ValidationError

from llmd_oke.config import shape_problems, yaml_files
from llmd_oke.config.base import ConfigPart, Items, Region
from llmd_oke.operations.pulumi_cli import POLICY_PACK
from llmd_oke.planning import Plan

POLICIES_FILE = f"{POLICY_PACK}/policies.yaml"
"""Path of the file in a project."""

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


class Organisation(ConfigPart):
    """Choices of an organisation. Every policy is advisory, and nothing is forbidden by name, where the file says
    nothing.
    """

    levels: dict[PolicyName, Level] = Field(default_factory=dict[PolicyName, Level])
    """Levels by policy: `mandatory` refuses a stack, `advisory` tells, `off` is silent; `advisory` if left out."""

    public_api: bool = False
    """Whether clusters may have a public API endpoint."""

    required_tags: Items[Text] = ()
    """Tags that each resource of OCI that has tags must have: `key` for a free-form one, `Namespace.Key` for a defined
    one."""

    monthly_usd: Annotated[float, Field(gt=0)] | None = None
    """Most that a stack may cost in a month at list price, in US dollars; no bound if left out."""

    regions: Items[Region] = ()
    """Regions in which stacks may create something; any if left out."""

    shapes: Items[Text] = ()
    """Shapes that nodes may have; any if left out."""

    protected: Items[Literal["cluster", "pools", "network", "file-systems"]] = ("cluster", "pools", "network")
    """What must be protected from being deleted and replaced."""

    tags_suffice: Items[Text] = ()
    """Beginnings of names of images that need no digest, such as `registry.example.com/`."""

    def level(self, policy: PolicyName) -> Level:
        """Level of a policy."""
        return self.levels.get(policy, "advisory")


def with_policies(project: Path, stack: str, plan: Plan) -> Plan:
    """Return a plan with the project's policies applied: breaches of advisory ones are advice. Without a policy pack in
    the project it is the plan itself, and Pulumi isn't loaded.

    Raises:
        InvalidStack: the stack breaches mandatory policies, or the policies' file is wrong.
        KitError: the program refuses the stack, or can't be declared here.
    """
    organisation = read_organisation(project)
    if organisation is None:
        return plan
    from llmd_oke.policies.applied import judged_plan  # noqa: PLC0415 - loads Pulumi

    return judged_plan(project, stack, plan, organisation)


def read_organisation(project: Path) -> Organisation | None:
    """Read an organisation's choices; None for a project without a policy pack. A pack without the file has defaults.

    Raises:
        KitError: the file can't be read, or is not YAML.
        InvalidStack: its shape is wrong; carries every problem, with lines.
    """
    if not (project / POLICY_PACK).is_dir():
        return None
    path = project / POLICIES_FILE
    if not path.is_file():
        return Organisation()
    document = yaml_files.read(path)
    try:
        return Organisation.model_validate(document.value or {}, by_alias=True, by_name=False)
    except ValidationError as error:
        found = shape_problems.problems(error.errors(include_url=False), document.value, Organisation)
        located = [
            Problem(item.path, item.value, item.accepted, item.why, document.line_of_part(item.path), POLICIES_FILE)
            for item in found
        ]
        raise InvalidStack(located, "the policies can't be applied") from error
