"""Which hosts outside the cluster a rehearsal answers for, from `values/rehearsal/outside.yaml`."""

from collections.abc import Mapping
from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry

PORT = 443


class Outside(Entry):
    """Hosts, the path of the bucket's pre-authenticated request, and files by path with their sizes in bytes."""

    hugging_face: str
    vocabularies: str
    object_storage: str
    bucket: str
    files: Mapping[str, int]

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them."""
        return self.hugging_face, self.vocabularies, self.object_storage

    @property
    def bucket_url(self) -> str:
        """What `modelSourceUrl` is in a rehearsal."""
        return f"https://{self.object_storage}{self.bucket}"


@cache
def outside() -> Outside:
    """The facts."""
    return required_entry("rehearsal", "outside", Outside)
