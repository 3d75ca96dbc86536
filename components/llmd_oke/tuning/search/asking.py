"""A question to the search from a catalogue's model and shape and what is wanted of them."""

from llmd_oke.catalogue import Model, Shape, model_names, shape_names
from llmd_oke.catalogue import model as model_of_name
from llmd_oke.catalogue import shape as shape_of_name
from llmd_oke.catalogue.memory import key_value_tokens
from llmd_oke.errors import KitError
from llmd_oke.tuning.search.question import Hardware, Question, Targets
from llmd_oke.tuning.servers.curves import Room
from llmd_oke.tuning.servers.figures import LatencyFigures, latency_figure_names, latency_figures, latency_model_of
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


def known_figures(model: Model, shape: Shape) -> LatencyFigures:
    """The kit's own latency figures of a model on a shape's GPUs.

    Raises:
        KitError: there are none.
    """
    found = latency_figures(model.name)
    if found is None:
        message = f"There are no latency figures of {model.name}."
        raise KitError(message, f"Models with figures: {', '.join(latency_figure_names())}. Others: --figures FILE.")
    return checked_figures(found, model, shape)


def checked_figures(figures: LatencyFigures, model: Model, shape: Shape) -> LatencyFigures:
    """The same figures.

    Raises:
        KitError: they are of another model or GPU.
    """
    if (figures.model, figures.gpu) != (model.name, shape.gpu.product):
        wanted, found = f"{model.name} on {shape.gpu.product}", f"{figures.model} on {figures.gpu}"
        raise KitError(f"The latency figures are of {found}, not of {wanted}.", "Fit rows of this model and GPU.")
    return figures


def sizes_of(model: Model, shape: Shape) -> tuple[int, ...]:
    """Tensor parallel sizes that split the model's heads evenly within a node: powers of two."""
    powers = (1 << power for power in range(shape.gpus.bit_length()))
    return tuple(size for size in powers if size <= shape.gpus and model.architecture.attention_heads % size == 0)


def question_of(
    model: Model,
    shape: Shape,
    figures: LatencyFigures,
    workload: Workload,
    targets: Targets,
    gpus: int,
    *,
    max_num_seqs: int = 256,
    gpu_memory_utilization: float = 0.95,
) -> Question:
    """The question which deployment of `gpus` GPUs serves the workload within the targets."""
    sizes = sizes_of(model, shape)
    room = {size: key_value_tokens(model, shape, size, gpu_memory_utilization) for size in sizes}
    return Question(
        model=latency_model_of(figures, model, shape),
        workload=workload,
        targets=targets,
        hardware=Hardware(gpus, shape.gpus, shape.price_usd_per_hour / shape.gpus),
        room=Room(room, max_num_seqs),
        sizes=sizes,
    )
