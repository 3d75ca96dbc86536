"""Arguments that operators have in common."""

from typing import NotRequired, TypedDict


class TolerationArgs(TypedDict):
    """A toleration in Kubernetes' own words."""

    key: str
    """Key of the taint."""
    operator: str
    """`Equal` or `Exists`."""
    value: NotRequired[str]
    """Value of the taint, for `Equal`."""
    effect: NotRequired[str]
    """Effect of the taint; all effects if left out."""


def plain(tolerations: list[TolerationArgs] | None) -> list[dict[str, str]]:
    """The tolerations as they go into manifests."""
    return [{key: str(value) for key, value in toleration.items()} for toleration in tolerations or ()]
