"""Where requests go."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmd_oke.bench.deployment.streams import Api

_CREDENTIALS = ("authorization", "proxy-authorization", "cookie", "x-api-key")
KNOWN_BY = 12
"""Characters by which a credential is known where the rest of it was cut off."""


@dataclass(frozen=True)
class Target:
    """Where requests go: `base_url` is what stands before `/v1/...`, so the path of a proxy may be part of it."""

    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True
    api: Api = "completions"

    def without_credentials(self, text: str) -> str:
        """What a server or a proxy answered, for files and terminals: some repeat the headers that they were sent. What
        begins as a credential is one, because answers are cut off.
        """
        values = (value for name, value in self.headers.items() if name.lower() in _CREDENTIALS)
        for credential in (value.split()[-1] for value in values if value.strip()):
            text = re.sub(re.escape(credential[:KNOWN_BY]) + r"[^\s\"'<>,]*", "[credential]", text)
        return text
