"""How many servers of each role there are, by load."""

from typing import Annotated

from pydantic import Field

from llmd_oke.config.base import Part
from llmd_oke.config.topology import Role

Count = Annotated[int, Field(ge=1, le=1024)]
Threshold = Annotated[float, Field(gt=0)]
WindowSeconds = Annotated[int, Field(ge=0, le=3600)]


class ServersScaling(Part):
    """Limits and thresholds of one role in each unit. A server is added while any threshold is exceeded on average."""

    min_replicas: Count
    """Servers that stay, whatever the load."""

    max_replicas: Count
    """Servers at the highest load. The GPU pools must have room for all of them at once."""

    requests: Threshold | None = None
    """Requests, running and waiting, of one server."""

    def thresholds(self) -> dict[str, float]:
        """The thresholds that are set, by their names."""
        return self.model_dump(exclude={"min_replicas", "max_replicas"}, exclude_none=True)


class PrefillScaling(ServersScaling):
    """Prefill servers."""

    prompt_tokens_per_s: Threshold | None = None
    """Prompt tokens that one server computes in a second."""


class DecodeScaling(ServersScaling):
    """Decode servers."""

    kv_cache_usage: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of one server's KV cache that is in use."""


class AggregatedScaling(PrefillScaling, DecodeScaling):
    """Aggregated servers, which do both."""


class Scaling(Part):
    """Servers come and go with the load, by KEDA, which must be in the cluster. They start as the topology says."""

    prometheus: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = None
    """Address of the Prometheus that has vLLM's metrics; the one of the llm-d guides if left out,
    `http://prometheus-operated.llm-d-monitoring.svc.cluster.local:9090`."""

    prefill: PrefillScaling | None = None
    """Prefill servers of each unit; their number stays if left out."""

    decode: DecodeScaling | None = None
    """Decode servers of each unit; their number stays if left out."""

    aggregated: AggregatedScaling | None = None
    """Aggregated servers of each unit; their number stays if left out."""

    scale_up_window_s: WindowSeconds | None = None
    """Seconds that more load must last before a server is added (Kubernetes' stabilization window); 0 if left out."""

    scale_down_window_s: WindowSeconds | None = None
    """Seconds that less load must last before a server is taken away; 300 if left out."""

    def servers(self) -> dict[Role, ServersScaling]:
        """The roles that are scaled."""
        by_role: dict[Role, ServersScaling | None] = {
            "prefill": self.prefill,
            "decode": self.decode,
            "aggregated": self.aggregated,
        }
        return {role: servers for role, servers in by_role.items() if servers is not None}
