"""Picture of a plan as one SVG: network, pools, nodes with servers on GPUs and virtual functions, routers, and cost.

Equal plans give equal bytes; the picture fits light and dark pages by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from textwrap import wrap
from typing import Literal, TypeVar

from jinja2 import Environment, StrictUndefined
from llmd_bench.plots.drawing import COLOURS

from llmd_oke.catalogue.cluster import subnets
from llmd_oke.config import CreateCluster, ExistingCluster
from llmd_oke.planning import ModelPlan, PlacedNode, PlacedServer, Plan, PlannedPool
from llmd_oke.planning.estimates import costs
from llmd_oke.planning.network import layout

_TEMPLATE = Path(__file__).with_name("diagram.svg.j2")

WIDTH = 1080
MARGIN = 24
PADDING = 16
"""Distance between a frame and its contents, in user units (pixels) of the SVG."""

MOST_NODES = 64
"""Maximum number of nodes that are drawn for a pool; further nodes are only counted in a text."""

MOST_ROUTERS = 16
"""Maximum number of routers that are drawn; further routers are only counted in a text."""

_GPU = 36
_GAP = 5
_GPUS_IN_ROW = 4
_CHARACTER = 6.4
"""Mean width of a character of the picture's text."""

ROLES: Mapping[str, str] = dict(zip(("prefill", "decode", "aggregated"), COLOURS[:3], strict=True))
"""Colour in the diagram of the servers of each role."""


Item = TypeVar("Item")


@dataclass(frozen=True)
class Part:
    """Element of the diagram: a box, a dot, an arrow or a text, in pixels. `about` is the text itself, or the tooltip
    of a box.
    """

    kind: Literal["box", "dot", "arrow", "text"]
    x: float
    y: float
    style: str = ""
    about: str = ""
    width: float = 0
    height: float = 0
    radius: float = 6


@dataclass
class _Canvas:
    """Parts in the order in which they are drawn, and the height that they have reached."""

    parts: list[Part] = field(default_factory=list[Part])
    y: float = MARGIN

    def text(self, x: float, y: float, text: str, style: str = "", room: float = WIDTH) -> None:
        most = max(4, int(room / _CHARACTER))
        self.parts.append(Part("text", x, y, style, text if len(text) <= most else f"{text[: most - 1]}…"))

    def box(self, x: float, y: float, width: float, height: float, style: str, about: str = "") -> None:
        self.parts.append(Part("box", x, y, style, about, width, height, min(6, height / 5)))

    def arrow(self, about: str) -> None:
        """Draw an arrow down from what is there, with words beside it."""
        self.parts.append(Part("arrow", WIDTH / 2, self.y + 4, height=26))
        self.text(WIDTH / 2 + 12, self.y + 21, about, "dim")
        self.y += 38


def diagram(stack: str, plan: Plan) -> str:
    """Return the picture of a stack's plan as an SVG document."""
    canvas = _Canvas()
    known = costs(plan)
    price = f"{known.usd_per_hour:,.2f} $/hour at list prices of {known.as_of}"
    canvas.text(MARGIN, canvas.y + 16, stack, "heading")
    summary = f"{plan.release.name}, {plan.gpus} GPUs, {plan.used_gpus} used, {price}"
    canvas.text(MARGIN, canvas.y + 38, summary, "dim")
    canvas.y += 54
    _clients(canvas, plan)
    top = canvas.y
    canvas.y += 30
    _subnets(canvas, plan)
    _routers(canvas, plan)
    for pool in plan.pools:
        _pool(canvas, plan, pool)
    canvas.parts.insert(0, Part("box", MARGIN, top, "frame", _place(plan), WIDTH - 2 * MARGIN, canvas.y - top, 10))
    canvas.text(MARGIN + PADDING, top + 20, _place(plan), "bold", WIDTH - 2 * (MARGIN + PADDING))
    canvas.y += 24
    _legend(canvas, plan)
    _costs(canvas, plan)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=f"{stack}: {summary}", width=WIDTH, height=round(canvas.y), colours=ROLES, parts=canvas.parts
    )


def _place(plan: Plan) -> str:
    match plan.cluster:
        case CreateCluster() as cluster if plan.created is not None:
            network = plan.created.network
            vcn = network.vcn_id or network.cidr or subnets().vcn_cidr
            return f"VCN {vcn} in {cluster.region}: OKE cluster {cluster.name}, Kubernetes {cluster.kubernetes_version}"
        case ExistingCluster() as cluster:
            return f"cluster {cluster.identifier}, which is there already"
        case _:
            return f"cluster of the stack {plan.cluster_stack}" if plan.cluster_stack else "cluster"


def _clients(canvas: _Canvas, plan: Plan) -> None:
    """Draw who asks, and the way that requests take to the routers."""
    if not plan.models:
        return
    width = 150.0
    canvas.box((WIDTH - width) / 2, canvas.y, width, 30, "box")
    canvas.text(WIDTH / 2, canvas.y + 19, "clients", "bold middle")
    canvas.y += 30
    door = plan.front_door
    if door is None:
        canvas.arrow("inside the cluster, each model by its own address")
        return
    host = f" at {door.host}" if door.host else ""
    keys = f", {door.authentication.kind}" if door.authentication else ""
    canvas.arrow(f"{door.exposure}{host}{', TLS' if door.tls else ''}{keys}")


def _subnets(canvas: _Canvas, plan: Plan) -> None:
    """Draw the subnets of a network that the stack creates."""
    if plan.created is None:
        return
    network = plan.created.network
    roles = network.choices.created(network.subnet_ids)
    vcn = IPv4Network(network.cidr or subnets().vcn_cidr)
    ranges = {role: str(cidr) for role, cidr in layout(vcn, roles, network.pools).subnets.items()}
    names = [(role.replace("_", " "), cidr) for role, cidr in ranges.items()]
    names += [(role.replace("_", " "), "is there already") for role in network.subnet_ids]
    for x, y, (role, cidr) in _grid(canvas, names, 5, 40):
        width = _column(5)
        canvas.box(x, y, width, 40, "box", f"subnet of {role}: {cidr}")
        canvas.text(x + 10, y + 17, f"subnet {role}", room=width - 20)
        canvas.text(x + 10, y + 32, cidr, "dim", width - 20)


def _routers(canvas: _Canvas, plan: Plan) -> None:
    """Draw the nodes without GPUs, with the front doors and routers that run there."""
    doors, routers = list(_front_doors(plan)), [row for model in plan.models for row in _routers_of(model)]
    if not routers and plan.created is None:
        return
    top = canvas.y
    canvas.y += 28
    pools = [
        f"{pool.name}: {pool.size} x {pool.shape} ({pool.options['ocpus']:g} OCPUs, {pool.options['memory_gib']:g} GB)"
        for pool in (plan.created.cpu_pools if plan.created else ())
    ]
    canvas.text(MARGIN + 2 * PADDING, top + 19, "; ".join(pools) or "nodes without GPUs", "bold")
    for rows in (doors, routers):
        more = len(rows) - MOST_ROUTERS
        shown = rows[:MOST_ROUTERS] + ([(f"and {more} more", "")] if more > 0 else [])
        for x, y, (name, about) in _grid(canvas, shown, 4, 40, inner=True):
            width = _column(4, inner=True)
            canvas.box(x, y, width, 40, "box", f"{name}: {about}")
            canvas.text(x + 10, y + 17, name, room=width - 20)
            canvas.text(x + 10, y + 32, about, "dim", width - 20)
    canvas.parts.append(_frame(top, canvas.y))
    if routers:
        apart = any(model.topology.disaggregated for model in plan.models)
        canvas.arrow(
            "requests, by way of decode servers, whose prompts prefill servers compute" if apart else "requests"
        )
    else:
        canvas.y += PADDING


def _front_doors(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.front_door is not None:
        yield "front door", f"Envoys, {plan.front_door.exposure}, {len(plan.front_door.models)} models"
    elif plan.gateway is not None:
        yield f"Gateway {plan.gateway.name}", plan.gateway.provider.name
    else:
        yield from ((f"front door {model.name}", "2 Envoys") for model in plan.models if model.routed)


def _routers_of(model: ModelPlan) -> Iterator[tuple[str, str]]:
    if model.routed:
        pickers = "1 endpoint picker" if model.router_replicas == 1 else f"{model.router_replicas} endpoint pickers"
        about = f"{pickers}, {model.router_profile}"
        yield from ((f"router {unit.name}", about) for unit in model.units)


def _pool(canvas: _Canvas, plan: Plan, pool: PlannedPool) -> None:
    """Draw the nodes of a pool, each with its GPUs and the servers on them."""
    nodes = [node for node in plan.nodes if node.pool == pool.name]
    top = canvas.y
    canvas.text(MARGIN + 2 * PADDING, top + 19, _pool_title(plan, pool), "bold", WIDTH - 2 * MARGIN - 3 * PADDING)
    canvas.y += 28
    gpu_rows = -(-pool.shape.gpus // _GPUS_IN_ROW)
    height = 26 + gpu_rows * (_GPU + _GAP) + (14 if pool.shape.rdma.virtual_functions else 4)
    for x, y, node in _grid(canvas, nodes[:MOST_NODES], 5, height, inner=True):
        _node(canvas, plan, node, x, y, height)
    if len(nodes) > MOST_NODES:
        canvas.text(MARGIN + 2 * PADDING, canvas.y + 4, f"and {len(nodes) - MOST_NODES} more nodes", "dim")
        canvas.y += PADDING
    canvas.parts.append(_frame(top, canvas.y))
    canvas.y += PADDING


def _pool_title(plan: Plan, pool: PlannedPool) -> str:
    scaled = f" ({pool.limits.least} to {pool.limits.most})" if pool.autoscaled else ""
    created = {created.name: created for created in plan.created.gpu_pools} if plan.created else {}
    where = created[pool.name].availability_domain if pool.name in created else None
    parts = [
        f"{pool.name}: {pool.size}{scaled} x {pool.shape.name}, {pool.price_usd_per_hour:,.2f} $/hour",
        *([where] if where else []),
        "KV cache from node to node by RDMA" if plan.rdma else "no RDMA",
    ]
    return ", ".join(parts)


def _node(canvas: _Canvas, plan: Plan, node: PlacedNode, x: float, y: float, height: float) -> None:
    width = _column(5, inner=True)
    canvas.box(x, y, width, height, "box", f"{node.pool}-{node.index}: {node.free_gpus} of {node.gpus} GPUs free")
    canvas.text(x + 10, y + 17, f"{node.pool}-{node.index}", "dim")
    place = 0
    codes = {  # a letter for the model, and a number; empty where there is one alone
        unit.name: (_letter(plan, index) or "u" * (model.copies > 1)) + (str(number) if model.copies > 1 else "")
        for index, model in enumerate(plan.models)
        for number, unit in enumerate(model.units)
    }
    for server in node.servers:
        _server(canvas, server, codes[server.unit], place, x + 10, y + 24)
        place += server.gpus
    for free in range(place, node.gpus):
        left, up = _cell(free)
        canvas.box(x + 10 + left, y + 24 + up, _GPU, _GPU, "free", "a GPU that no server uses")
    used = node.virtual_functions - node.free_virtual_functions
    for index in range(node.virtual_functions):
        style = "used" if index < used else "spare"
        canvas.parts.append(Part("dot", x + 14 + index * 11, y + height - 10, style))


def _server(canvas: _Canvas, server: PlacedServer, code: str, first: int, x: float, y: float) -> None:
    """Draw a server over its GPUs, in one piece where they fill whole rows."""
    part = f", part {server.node_rank + 1} of {server.nodes}" if server.nodes > 1 else ""
    functions = f", {server.virtual_functions} virtual functions" if server.virtual_functions else ""
    about = f"{server.unit}: {server.role} server {server.index}{part} on {server.gpus} GPUs{functions}"
    name = f"{server.role[0].upper()}{server.index}" + (f".{server.node_rank}" if server.nodes > 1 else "")
    place = first
    while place < first + server.gpus:
        left_over = first + server.gpus - place
        in_row = min(left_over, _GPUS_IN_ROW - place % _GPUS_IN_ROW)
        rows = max(1, left_over // _GPUS_IN_ROW) if in_row == _GPUS_IN_ROW else 1
        left, up = _cell(place)
        width, height = (count * (_GPU + _GAP) - _GAP for count in (in_row, rows))
        canvas.box(x + left, y + up, width, height, server.role, about)
        middle, line = x + left + width / 2, y + up + height / 2
        canvas.text(middle, line + (-2 if code else 4), name, "on")
        if code:
            canvas.text(middle, line + 10, code, "on")
        place += in_row * rows


def _letter(plan: Plan, index: int) -> str:
    return chr(ord("a") + index % 26) if len(plan.models) > 1 else ""


def _cell(place: int) -> tuple[float, float]:
    row, column = divmod(place, _GPUS_IN_ROW)
    return column * (_GPU + _GAP), row * (_GPU + _GAP)


def _legend(canvas: _Canvas, plan: Plan) -> None:
    """Draw what colours, dots and letters mean."""
    roles = dict.fromkeys(role.role for model in plan.models for role in model.units[0].roles)
    x: float = MARGIN
    named = [*((role, f"{role} server ({role[0].upper()})") for role in roles), ("free", "free GPU")]
    for style, text in named:
        canvas.box(x, canvas.y - 11, 14, 14, style)
        canvas.text(x + 20, canvas.y, text)
        x += 44 + len(text) * _CHARACTER
    for style, text in (("used", "virtual function in use"), ("spare", "free")) if plan.rdma else ():
        canvas.parts.append(Part("dot", x + 4, canvas.y - 4, style))
        canvas.text(x + 14, canvas.y, text)
        x += 34 + len(text) * _CHARACTER
    canvas.y += 18
    for index, model in enumerate(plan.models):
        letter = f"{code}: " if (code := _letter(plan, index)) else ""
        numbers = "; the second line of a server is its unit" if model.copies > 1 else ""
        servers = f"{model.copies} x {model.topology}" if model.copies > 1 else str(model.topology)
        canvas.text(MARGIN, canvas.y, f"{letter}{model.name}, {servers}, {model.gpus} GPUs{numbers}", "dim")
        canvas.y += 16
    canvas.y += 10


def _costs(canvas: _Canvas, plan: Plan) -> None:
    """Draw the price of each part by the hour, and the sum."""
    known = costs(plan)
    rows = [(part.part, part.usd_per_hour) for part in known.parts]
    rows += [("all of it", known.usd_per_hour)] if len(rows) > 1 else []
    canvas.text(MARGIN, canvas.y + 4, f"list prices of {known.as_of}, $/hour", "bold")
    canvas.y += 22
    for name, price in rows:
        canvas.text(MARGIN, canvas.y, name, "bold" if name == "all of it" else "", 420)
        canvas.text(MARGIN + 520, canvas.y, "unknown" if price is None else f"{price:,.2f}", "end")
        canvas.y += 17
    for line in wrap(f"not included: {'; '.join(known.not_included)}", int((WIDTH - 2 * MARGIN) / _CHARACTER)):
        canvas.text(MARGIN, canvas.y, line, "dim")
        canvas.y += 15
    canvas.y += MARGIN - 15


def _frame(top: float, bottom: float) -> Part:
    return Part("box", MARGIN + PADDING, top, "frame", "", WIDTH - 2 * (MARGIN + PADDING), bottom - top, 8)


def _column(columns: int, *, inner: bool = False) -> float:
    """Return the width of one of equal columns in a frame."""
    room = WIDTH - 2 * (MARGIN + PADDING) - (2 * PADDING if inner else 0)
    return (room - (columns - 1) * 10) / columns


def _grid(
    canvas: _Canvas, items: Sequence[Item], columns: int, height: float, *, inner: bool = False
) -> Iterator[tuple[float, float, Item]]:
    """Yield places of items in rows of equal columns, and move the canvas below them."""
    left, top, width = MARGIN + PADDING * (2 if inner else 1), canvas.y, _column(columns, inner=inner)
    for index, item in enumerate(items):
        row, column = divmod(index, columns)
        yield left + column * (width + 10), top + row * (height + 10), item
    canvas.y = top + -(-len(items) // columns) * (height + 10) + (6 if items else 0)
