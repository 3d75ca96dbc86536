"""Where requests go."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmd_oke.bench.deployment.streams import Api


@dataclass(frozen=True)
class Target:
    """Where requests go: `base_url` is what stands before `/v1/...`, so the path of a proxy may be part of it."""

    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True
    api: Api = "completions"
