"""What a stack takes from its project's own `values/` instead of the kit's."""

from collections.abc import Iterator

from llmd_oke.catalogue.container_images import LOCK, project_lock
from llmd_oke.catalogue.endpoint_pickers import ENDPOINT_PICKERS
from llmd_oke.catalogue.entries import ProjectEntry, origin
from llmd_oke.catalogue.models import MODELS
from llmd_oke.catalogue.operations import PRICES
from llmd_oke.catalogue.pools import IMAGES
from llmd_oke.catalogue.project import LATENCY
from llmd_oke.catalogue.releases import RELEASES
from llmd_oke.catalogue.shapes import GPUS, SHAPES
from llmd_oke.planning.container_images import images_of
from llmd_oke.planning.plan import Plan


def project_entries(plan: Plan) -> tuple[ProjectEntry, ...]:
    """The project's own entries that a plan and its forecasts go by, each once."""
    origins = (origin(folder, name) for folder, name in dict.fromkeys(_used(plan)))
    return tuple(item for item in origins if item is not None)


def _used(plan: Plan) -> Iterator[tuple[str, str]]:
    """Folders and names of all entries that a plan goes by."""
    gpus = dict.fromkeys(pool.shape.gpu.product for pool in plan.pools)
    for model in plan.models:
        yield MODELS.folder, model.model.name
        yield from ((f"{LATENCY}/{gpu}", model.model.name) for gpu in gpus)
    yield from ((SHAPES.folder, pool.shape.name) for pool in plan.pools)
    yield from ((GPUS.folder, gpu) for gpu in gpus)
    yield from ((RELEASES.folder, name) for name in (plan.config.release, plan.router_release))
    yield ENDPOINT_PICKERS.folder, plan.release.endpoint_picker.program.version
    imports = (pool.image.import_ for pool in plan.config.gpu_pools if pool.image)
    yield from ((IMAGES.folder, item.name) for item in imports if item)
    own_digests = project_lock().images
    if own_digests and any(used.image.reference in own_digests for used in images_of(plan)):
        yield LOCK.folder, "lock"
    yield PRICES.folder, "oci"
