"""Availability domains whose name tells another region than the cluster's."""

import re
from collections.abc import Iterator

from llmd_oke.config import CreateCluster, FileStorage, Lustre, StackConfig
from llmd_oke.errors import Problem

_REGION_PART = re.compile(r"^[^:]+:(?P<region>.+)-AD-[1-9]$")
_REGION_KEYS = {"PHX": "us-phoenix"}
"""Names with a region's key in place of its words: OCI documentation, Regions and Availability Domains."""


def availability_domain_problems(config: StackConfig) -> Iterator[Problem]:
    """Availability domains of another region, where this stack creates what is in them."""
    cluster = config.cluster
    if not isinstance(cluster, CreateCluster) or config.layer == "serving":
        return
    for path, name in _named(config, cluster):
        told = region_words(name)
        if told is not None and not f"{cluster.region}-".startswith(f"{told}-"):
            why = f"its name tells the region {told}, and cluster.region is {cluster.region}"
            yield Problem(path, name, f"an availability domain of {cluster.region}", why)


def region_words(availability_domain: str) -> str | None:
    """The region that the name of an availability domain tells, with or without its number; None where it tells none.

    `Uocm:US-ASHBURN-AD-1` is in us-ashburn, `TGjA:CA-TORONTO-1-AD-1` in ca-toronto-1, `Uocm:PHX-AD-1` in us-phoenix.
    """
    found = _REGION_PART.match(availability_domain)
    words = found["region"] if found else ""
    if re.fullmatch(r"[A-Z]+-[A-Z]+(-[0-9]+)?", words):
        return words.lower()
    return _REGION_KEYS.get(words)


def _named(config: StackConfig, cluster: CreateCluster) -> Iterator[tuple[str, str]]:
    for i, pool in enumerate(config.gpu_pools):
        if pool.availability_domain is not None and pool.pool_id is None:
            yield f"gpuPools[{i}].availabilityDomain", pool.availability_domain
    lists = {"systemPool": config.system_pool.availability_domains}
    lists |= {f"cpuPools[{i}]": pool.availability_domains for i, pool in enumerate(config.cpu_pools)}
    lists["cluster.given"] = cluster.given.availability_domains
    for path, names in lists.items():
        yield from ((f"{path}.availabilityDomains[{i}]", name) for i, name in enumerate(names))
    cache = config.storage.model_cache
    if isinstance(cache, FileStorage | Lustre) and cache.availability_domain is not None:
        yield "storage.modelCache.availabilityDomain", cache.availability_domain
