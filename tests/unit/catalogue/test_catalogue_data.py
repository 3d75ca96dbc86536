"""The data in values/: complete, with its sources, of one mind with itself."""

import re
from string import Template
from typing import get_args

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue.benchmarks import evals
from llmd_oke.catalogue.cluster import Need, policies
from llmd_oke.catalogue.operations import remedy_for
from llmd_oke.config import ModelConfig, Topology, WorkloadConfig
from llmd_oke.config.base import DnsLabel
from llmd_oke.values import values_folder
from pydantic import TypeAdapter
from stack_files import known_model, known_shape

MODELS = [known_model(name) for name in catalogue.model_names()]
SHAPES = [known_shape(name) for name in catalogue.shape_names()]
FIGURE_FILES = sorted(path for kind in ("gpus", "models", "shapes") for path in (values_folder() / kind).glob("*.yaml"))
FIGURE = re.compile(r":\s*(\"?\d|\{.*:\s*\d)")

by_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def test_every_catalogue_entry_of_models_and_shapes_has_the_name_of_its_file():
    assert [model.name for model in MODELS] == catalogue.model_names()
    assert [shape.name for shape in SHAPES] == catalogue.shape_names()


@pytest.mark.parametrize("name", ["", "gpt", "../models/gpt-oss-120b", "gpt-oss-120b.yaml", "*"])
def test_invalid_or_unknown_names_have_no_catalogue_entry(name: str):
    assert catalogue.model(name) is None
    assert catalogue.shape(name) is None
    assert catalogue.release(name) is None


def test_a_model_is_found_by_its_repository():
    assert catalogue.model_of_repository("openai/gpt-oss-120b") == catalogue.model("gpt-oss-120b")
    assert catalogue.model_of_repository("gpt-oss-120b") is None


def test_every_figure_has_a_source_on_its_line_or_its_section():
    for path in FIGURE_FILES:
        section_has_source: dict[int, bool] = {}
        for line in path.read_text().splitlines():
            depth = len(line) - len(line.lstrip())
            around = [known for at, known in section_has_source.items() if at < depth]
            section_has_source = {at: known for at, known in section_has_source.items() if at < depth}
            section_has_source[depth] = "#" in line
            if FIGURE.match(line.split("#")[0]) and not line.startswith("server_requests_per_gpu:"):
                assert "#" in line or any(around), f"{path.name}: {line}"


def test_the_sizes_in_each_model_entry_do_not_contradict_each_other():
    for model in MODELS:
        sizes = model.architecture
        assert sizes.attention_heads % sizes.key_value_heads == 0, model.name
        assert model.parameters.active_billions <= model.parameters.total_billions, model.name
        dense = model.parameters.active_billions == model.parameters.total_billions
        assert (sizes.experts is None) == dense, model.name
        assert sizes.sliding_window is None or sizes.sliding_window.layers < sizes.layers, model.name
        assert model.startup_budget_s == 3600, model.name  # as long as upstream's longest overlay gives


def test_a_model_without_a_configured_name_gets_one_valid_in_kubernetes():
    workload, topology = WorkloadConfig(input_tokens=1, output_tokens=1), Topology.model_validate("agg-tp1-1r")
    for model in MODELS:
        one = ModelConfig(model=model.name, topology=topology, workload=workload)
        TypeAdapter(DnsLabel).validate_python(one.object_name)


@pytest.mark.parametrize(
    ("name", "weights_gib", "kv_bytes", "context"),
    [("gpt-oss-120b", 60.8, 73_728, 131_072), ("llama-3.3-70b-instruct-fp8-dynamic", 67.7, 327_680, 131_072)],
)
def test_model_entries_have_the_published_weight_kv_cache_and_context_sizes(
    name: str, weights_gib: float, kv_bytes: int, context: int
):
    model = known_model(name)
    assert model.weights.gib == pytest.approx(weights_gib, abs=0.1)
    assert (model.kv_cache.bytes_per_token, model.max_model_len) == (kv_bytes, context)


@by_shape
def test_servers_on_a_full_node_leave_a_quarter_of_cpu_and_memory_to_daemons(shape: catalogue.Shape):
    requests = shape.server_requests_per_gpu
    assert requests.cpus * shape.gpus <= 0.75 * shape.cpus
    assert requests.memory_gib * shape.gpus <= 0.75 * shape.memory_gib


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.rdma.virtual_functions], ids=lambda shape: shape.name)
def test_ucx_transports_of_a_shape_include_rocm_and_exclude_cuda(shape: catalogue.Shape):
    transports = shape.rdma.environment["UCX_TLS"].split(",")
    assert "rocm" in transports
    assert not [name for name in transports if "cuda" in name]
    assert "UCX_NET_DEVICES" not in shape.rdma.environment


def test_the_mi300x_shape_has_the_published_gpus_price_memory_and_resources():
    shape = known_shape()
    assert (shape.gpus, shape.rdma.virtual_functions, shape.price_usd_per_hour) == (8, 8, 48.0)
    assert shape.gpu.memory_gib == 191.7
    assert (shape.gpu.resource, shape.rdma.resource) == ("amd.com/gpu", "nvidia.com/sriov-rdma-vf")


def test_a_models_quick_reduce_setting_has_a_passed_accuracy_evaluation():
    for passed, name in ((model.quick_reduce.evaluation, model.name) for model in MODELS if model.quick_reduce):
        floor = evals().floor(passed.name, name)
        assert floor is not None, name
        assert passed.score >= floor.score, name
        assert passed.release in catalogue.release_names(), name


GPUS = [item for name in catalogue.gpu_names() if (item := catalogue.gpu(name)) is not None]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.product)
def test_each_gpu_has_its_files_name_its_rates_and_one_node_type_with_eight_gpus(gpu: catalogue.Gpu):
    """Node types: an OCI shape, or one in the GPU's entry. Rates: twice as much in FP8 as in BF16."""
    assert catalogue.gpu(gpu.product) == gpu
    node = catalogue.node_of_gpu(gpu.product)
    assert (node.gpu, node.gpus) == (gpu, 8)
    assert any(shape.gpu == gpu for shape in SHAPES) != (gpu.node is not None)
    assert gpu.dense_tflops.of("fp8") == pytest.approx(2 * gpu.dense_tflops.of("bf16"), rel=0.01)


def test_number_formats_that_a_gpu_lacks_are_computed_at_its_bf16_rate():
    hopper, cdna4 = (gpu for gpu in GPUS if gpu.product in {"H200", "MI355X"})
    assert hopper.dense_tflops.of("mxfp4") == hopper.dense_tflops.bf16
    assert cdna4.dense_tflops.of("mxfp4") > cdna4.dense_tflops.of("fp8")


def test_a_gpus_price_follows_from_its_shape_and_an_unknown_gpu_has_none():
    assert catalogue.node_of_gpu("MI355X").price_usd_per_gpu_hour == pytest.approx(8.60)
    assert catalogue.node_of_gpu("H300") is None


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("(500, InternalError, false) Out of host capacity.", "no free machine"),
        ("2 node(s) register timeout", "did not join"),
        ("[Error] after 60 s: 0 of 1 nodes have joined", "console history"),
        ("429-TooManyRequests, Too many requests for the user", "Wait some minutes"),
        ("500-InternalError, Internal server error", "request's id"),
        ("Work Request error", "work request"),
        ("404-NotAuthorizedOrNotFound, Authorization failed or requested resource not found", "pulumi up --refresh"),
    ],
)
def test_each_known_oci_failure_and_no_other_has_a_remedy(failure: str, remedy: str) -> None:
    assert remedy in (remedy_for(failure) or "")
    assert remedy_for("the moon is full") is None


STATEMENTS = [statement for entry in policies().needs.values() for statement in entry.statements]
SCOPES = {
    "compartment_id": "compartment",
    "network_compartment_id": "network",
    "tag_namespaces": "tags",
    "reservation_compartment_id": "reservations",
    "image_compartment_id": "images",
    "key_compartment_id": "keys",
    None: "tenancy",
}
KNOWN = {"tenancy_id", "cluster_id", *SCOPES}
GRAMMAR = re.compile(
    r"^Allow (any-user|service [a-z_]+|\$[a-z]+) to "
    r"((use|read|inspect|manage) [a-z-]+|\{[A-Z_]+(, [A-Z_]+)*\}) "
    r"in (tenancy|\$tag_namespaces|compartment id \$[a-z_]+)"
    r"( where (ALL \{.+\}|[a-z.-]+ = '[^']+'))?$"
)


def test_every_iam_permission_has_policy_statements_of_ocis_grammar_with_a_source():
    assert set(policies().needs) == set(get_args(Need))
    assert all(entry.statements and entry.why for entry in policies().needs.values())
    for statement in STATEMENTS:
        assert GRAMMAR.match(statement.text), statement
        assert statement.source, statement


def test_every_placeholder_of_an_iam_policy_statement_is_a_known_variable():
    known = KNOWN | set(policies().groups) | set(policies().principals)
    for statement in STATEMENTS:
        variables = set(Template(statement.text).get_identifiers())
        assert variables <= known | ({statement.variable} if statement.variable else set()), statement
        assert statement.variable is None or statement.variable in variables, statement


def test_every_iam_statement_for_any_user_has_a_condition_on_the_principal():
    for statement in STATEMENTS:
        text = Template(statement.text).safe_substitute(policies().principals)
        condition = text.partition(" where ")[2]
        assert "request.principal." in condition or not text.startswith("Allow any-user"), statement


def test_an_iam_policy_is_attached_to_the_compartment_that_its_statements_name():
    for statement in STATEMENTS:
        place = re.search(r" in (tenancy|\$(tag_namespaces)|compartment id \$(\w+))", statement.text)
        assert place is not None, statement
        assert SCOPES[place[2] or place[3]] == statement.scope, statement


def test_no_iam_statement_grants_permissions_on_all_resources():
    assert [statement.text for statement in STATEMENTS if "all-resources" in statement.text] == []
    tenancy_wide = [statement.text for statement in STATEMENTS if statement.scope == "tenancy"]
    assert tenancy_wide == ["Allow service lustrefs to use virtual-network-family in tenancy"]
