"""Where model servers read weights from, as component arguments."""

from typing import NotRequired, TypedDict

import pulumi


class PrewarmArgs(TypedDict):
    """How weights get into a cache before servers start."""

    source: str
    """`hugging-face` or `object-storage`; a bucket has each model's files under its repository's name, and vocabularies
    under `encodings/`."""
    revision: NotRequired[str]
    """Commit of the repository, or of a bucket's files; the catalogue's commit of the model if left out."""
    connections: NotRequired[int]
    """Files that one download reads at a time; 8 if left out."""
    belongs_to_root: NotRequired[bool]
    """Whether the folder is root's and has to be given to the user that fills it, as on nodes' disks and Lustre;
    File Storage maps all users to one by its export, which is what is assumed if left out."""


class ModelCacheMountArgs(TypedDict):
    """A cache that is on each node (`path`) or shared by all of them (`claim`)."""

    path: NotRequired[str]
    """Folder on the nodes."""
    claim: NotRequired[pulumi.Input[str]]
    """Claim of a volume that all nodes share."""
    prewarm: NotRequired[PrewarmArgs]
    """How weights get there before servers start; servers download them themselves if left out."""
