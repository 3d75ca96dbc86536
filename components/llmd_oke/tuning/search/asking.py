"""A question to the search from a catalogue's model and node and what is wanted of them."""

from llmd_oke.catalogue import Model, Node, Shape, gpu_names, model_names, node_of_gpu, shape_names
from llmd_oke.catalogue import model as model_of_name
from llmd_oke.catalogue import shape as shape_of_name
from llmd_oke.catalogue.memory import key_value_tokens
from llmd_oke.config.model import RouterProfileName
from llmd_oke.errors import KitError
from llmd_oke.tuning.search.question import Hardware, Question, Targets
from llmd_oke.tuning.servers.conditions import AS_VLLM, DEFAULT_BLOCK_SIZE, Started
from llmd_oke.tuning.servers.curves import Room
from llmd_oke.tuning.servers.figures import LatencyFigures, bound_figures, latency_figures, latency_model_of
from llmd_oke.tuning.servers.workload import Workload


def known_model(name: str) -> Model:
    """The catalogue's model of that name.

    Raises:
        KitError: there is none.
    """
    if found := model_of_name(name):
        return found
    raise KitError(f"There is no model {name!r} in the catalogue.", f"Models: {', '.join(model_names())}.")


def known_shape(name: str) -> Shape:
    """The catalogue's shape of that name.

    Raises:
        KitError: there is none.
    """
    if found := shape_of_name(name):
        return found
    raise KitError(f"There is no shape {name!r} in the catalogue.", f"Shapes: {', '.join(shape_names())}.")


def known_gpu(product: str) -> Node:
    """The nodes that a GPU product comes in; its case is all one.

    Raises:
        KitError: the catalogue has no such GPU.
    """
    if found := node_of_gpu(gpu_named(product)):
        return found
    raise KitError(f"There is no GPU {product!r} in the catalogue.", f"GPUs: {', '.join(gpu_names())}.")


def gpu_named(product: str) -> str:
    """The catalogue's spelling of a GPU product; the same where it has none."""
    return next((each for each in gpu_names() if each.lower() == product.lower()), product)


def known_figures(model: Model, node: Node) -> LatencyFigures:
    """The kit's own latency figures of a model on a node's GPUs; bounds of the hardware where it has none."""
    return latency_figures(model.name, node.gpu.product) or bound_figures(model, node.gpu)


def checked_figures(figures: LatencyFigures, model: Model, node: Node) -> LatencyFigures:
    """The same figures.

    Raises:
        KitError: they are of another model or GPU.
    """
    if (figures.model, figures.gpu) != (model.name, node.gpu.product):
        wanted, found = f"{model.name} on {node.gpu.product}", f"{figures.model} on {figures.gpu}"
        remedy = f"Without a stack: --model {figures.model} --gpu {figures.gpu}. Else fit rows of {wanted}."
        raise KitError(f"The latency figures are of {found}, not of {wanted}.", remedy)
    return figures


def sizes_of(model: Model, node: Node) -> tuple[int, ...]:
    """Tensor parallel sizes that split the model's heads evenly within a node: powers of two."""
    powers = (1 << power for power in range(node.gpus.bit_length()))
    return tuple(size for size in powers if size <= node.gpus and model.architecture.attention_heads % size == 0)


def question_of(
    model: Model,
    node: Node,
    figures: LatencyFigures,
    workload: Workload,
    targets: Targets,
    gpus: int,
    *,
    max_num_seqs: int = 256,
    gpu_memory_utilization: float = 0.95,
    started: Started = AS_VLLM,
    profile: RouterProfileName = "token-load",
) -> Question:
    """The question which deployment of `gpus` GPUs serves the workload within the targets.

    `started` is what its servers are started with, `profile` how its routers choose among them.
    """
    sizes = sizes_of(model, node)
    room = {size: key_value_tokens(model, node, size, gpu_memory_utilization) for size in sizes}
    return Question(
        model=latency_model_of(figures, model, node, started.handing_over),
        workload=workload,
        targets=targets,
        hardware=Hardware(gpus, node.gpus, node.price_usd_per_gpu_hour),
        room=Room(
            room,
            max_num_seqs,
            started.handing_over.block_size or DEFAULT_BLOCK_SIZE,
            started.aggregated.block_size or DEFAULT_BLOCK_SIZE,
        ),
        sizes=sizes,
        profile=profile,
    )
