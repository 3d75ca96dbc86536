"""IAM permissions of CI pipelines' identities for the settings of a stack."""

from collections.abc import Iterator, Mapping, Sequence
from string import Template
from urllib.parse import urlsplit

from llmd_oke.catalogue.operations import PipelineIdentity, StackFeature
from llmd_oke.config import CreateCluster, Lustre, StackConfig
from llmd_oke.planning.tags import planned_tags

UNKNOWN_COMPARTMENT = "COMPARTMENT_OF_THE_CLUSTER"
"""Placeholder of the compartment in statements for an existing cluster."""

Values = Mapping[str, str]


def pipeline_statements(identity: PipelineIdentity, config: StackConfig, group: str) -> list[str]:
    """Return the policy statements that an identity's group needs for a stack, without repetitions."""
    cluster = config.created_cluster
    known = {"group": group, "compartment_id": UNKNOWN_COMPARTMENT if cluster is None else cluster.compartment_id}
    used: Mapping[StackFeature, Sequence[Values]] = {} if cluster is None else _features(config, cluster)
    always: Sequence[Values] = [{}]
    texts = [
        Template(statement.text).substitute({**known, **values})
        for statement in identity.statements
        for values in (used.get(statement.when, ()) if statement.when else always)
    ]
    return list(dict.fromkeys(texts))


def _features(config: StackConfig, cluster: CreateCluster) -> Mapping[StackFeature, Sequence[Values]]:
    iam, own, tags = cluster.iam, cluster.compartment_id, planned_tags(config)
    pools = [pool for pool in config.gpu_pools if pool.pool_id is None]
    images = [pool.image for pool in (config.system_pool, *config.cpu_pools, *pools) if pool.image]
    keys = [cluster.kms_key_id, *(pool.boot_volume_kms_key_id for pool in pools)]
    key_compartment = {"key_compartment_id": iam.key_compartment_id or own}
    namespaces = (
        "tenancy" if tags.namespace_compartment_id is None else f"compartment id {tags.namespace_compartment_id}"
    )
    spaces = dict.fromkeys(name.partition(".")[0] for name in tags.defined)
    files = [bucket for image in images if image.import_ for bucket in _buckets(image.import_.uri)]
    network = cluster.network.compartment_id
    reserved = any(pool.capacity_reservation_id for pool in pools)
    given = any(image.ocid for image in images)
    return {
        "rights": [{}] if iam.create else [],
        "budget": [{}] if config.budget else [],
        "oci-alarms": [{}] if config.oci_monitoring and config.oci_monitoring.alarms else [],
        "oci-logs": [{}] if config.oci_monitoring and config.oci_monitoring.logs else [],
        "oci-pod-logs": [{}] if config.sends_pod_logs else [],
        "lustre": [{}] if isinstance(config.storage.model_cache, Lustre) else [],
        "keys": [{**key_compartment, "key_id": key} for key in dict.fromkeys(keys) if key],
        "defined-tags": [{"tag_namespaces": namespaces, "tag_namespace": space} for space in spaces],
        "image-files": [{"bucket": bucket} for bucket in files],
        "images-elsewhere": [{"image_compartment_id": iam.image_compartment_id}]
        if given and iam.image_compartment_id
        else [],
        "reservations": [{"reservation_compartment_id": iam.reservation_compartment_id or own}] if reserved else [],
        "network-elsewhere": [{"network_compartment_id": network}] if network not in (None, own) else [],
    }


def _buckets(uri: str | None) -> Iterator[str]:
    """Yield the bucket in the URL of an Object Storage file (`/n/NAMESPACE/b/BUCKET/o/OBJECT`); nothing for
    other URLs.
    """
    parts = urlsplit(uri or "").path.split("/")
    if "b" in parts[:-1]:
        yield parts[parts.index("b") + 1]
