"""Limits of waits, in seconds. The Kubernetes plug-in's default, ten minutes, is too short where weights are loaded."""

import pulumi

ROUTER_S = 600
"""The endpoint picker and Envoy start within seconds; the rest is for pulling their images."""

NAMESPACE_S = 120

DELETE_S = 600
"""Pods end within their grace of at most 130 s, a namespace after all that is in it."""


def timeouts(create_s: int, update_s: int | None = None) -> pulumi.CustomTimeouts:
    """Pulumi's timeouts from seconds; updates may take as long as creation if nothing else is said."""
    return pulumi.CustomTimeouts(create=f"{create_s}s", update=f"{update_s or create_s}s", delete=f"{DELETE_S}s")
