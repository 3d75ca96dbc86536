"""DNS names of the pods of servers that span nodes, for routing sidecars, whose arguments contain all of them."""

from importlib import resources

from llmd_oke.catalogue.releases import POD_IP
from llmd_oke.config import Role
from llmd_oke.kubernetes_types import Container, EnvVar
from llmd_oke.objects import RESTRICTED_CONTAINER
from llmd_oke.serving import bench_program, labels
from llmd_oke.serving.manifests import from_field
from llmd_oke.serving.vllm import ServerSpec

_UNIT, _NAMESPACE = "LLMD_OKE_UNIT", "POD_NAMESPACE"


def hosts(role: Role, nodes: int) -> list[str]:
    """Return the DNS names of the pods of a role's first server in the order of their nodes, as its LeaderWorkerSet
    creates them. Unit and namespace are references to environment variables, which Kubernetes expands.
    """
    name = f"$({_UNIT})-{role}"
    return [f"{name}-0{f'-{rank}' if rank else ''}.{name}.$({_NAMESPACE}).svc" for rank in range(nodes)]


def environment() -> list[EnvVar]:
    """Return the environment variables that the peers' DNS names refer to (unit and namespace), and the pod's own
    address.
    """
    namespace, address = from_field(_NAMESPACE, "metadata.namespace"), from_field(POD_IP, "status.podIP")
    return [bench_program.from_label(_UNIT, labels.UNIT), namespace, address]


def waiting_container(spec: ServerSpec) -> Container:
    """Return the init container that waits, at most for the start-up budget, until the DNS names of the pods of both
    roles resolve: a sidecar that ended because of a missing name would restart all pods of its group.
    """
    names = [name for role in ("prefill", "decode") for name in hosts(role, spec.parallelism.nodes)]
    return bench_program.container(
        name="peer-names",
        image=spec.release.vllm.image.pinned,
        command=["python3", "-IBc", (resources.files("llmd_pods") / "peer_names.py").read_text(encoding="utf-8")],
        args=[f"--limit-s={spec.model.startup_budget_s}", f"--own=$({POD_IP})", *names],
        env=environment(),
        resources={"requests": {"cpu": "100m", "memory": "64Mi"}},
        securityContext={**RESTRICTED_CONTAINER, "runAsNonRoot": True, "runAsUser": 65534},
    )
