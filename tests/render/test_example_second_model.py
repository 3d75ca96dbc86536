"""The examples of an existing cluster and of a second model there, whose program reads the first one's outputs."""

import re
import runpy
from functools import cache, partial
from pathlib import Path
from typing import Any

from llmd_oke.testing import ClusterMocks, Rendered, declared
from render_support import PROJECT, vllm

CLUSTER = "ocid1.cluster.oc1.iad.there"


def program(name: str) -> Path:
    return PROJECT / "examples" / name / "__main__.py"


@cache
def first() -> Rendered:
    config = {"serving:clusterId": CLUSTER, "serving:kubeconfig": "of the cluster"}
    run = partial(runpy.run_path, str(program("existing-cluster")), run_name="__main__")
    return declared(run, config=config, secret_keys=("serving:kubeconfig",))


class FirstStack(ClusterMocks):
    """The stack of the first example, as references to it answer; `asked` are the names that they gave it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def new_resource(self, args: Any) -> tuple[str | None, dict[str, Any]]:
        if args.typ == "pulumi:pulumi:StackReference":
            self.asked.append(args.inputs["name"])
            return args.name, {"name": args.name, "outputs": dict(first().outputs), "secretOutputNames": ["kubeconfig"]}
        return super().new_resource(args)


def second(cluster: FirstStack | None = None, **config: str) -> Rendered:
    run = partial(runpy.run_path, str(program("second-model")), run_name="__main__")
    return declared(run, config=config, cluster=cluster or FirstStack())


def test_the_existing_cluster_example_deploys_prefill_and_decode_servers():
    made = first()
    assert made.kubernetes("Deployment", "gpt-oss-120b-prefill")["spec"]["replicas"] == 4
    assert vllm(made, "gpt-oss-120b-decode")["resources"]["limits"]["amd.com/gpu"] == "1"
    assert made.kubernetes("Service", "gpt-oss-120b")
    providers = made.of_type("pulumi:providers:kubernetes")
    assert {provider.inputs["clusterIdentifier"] for provider in providers} == {CLUSTER}
    assert all("kubeconfig" in provider.secret_inputs for provider in providers)


def test_the_second_model_example_deploys_into_the_first_stacks_namespace():
    made, spec = second(), second().kubernetes("Deployment", "llama-aggregated")
    assert spec["metadata"]["namespace"] == first().outputs["namespace"]
    assert spec["spec"]["template"]["spec"]["serviceAccountName"] == first().outputs["service_account"]
    (provider,) = made.of_type("pulumi:providers:kubernetes")
    assert provider.inputs["clusterIdentifier"] == CLUSTER
    assert "kubeconfig" in provider.secret_inputs
    assert made.outputs["url"] == "http://llama.llm-d.svc.cluster.local"


def test_the_second_model_example_declares_no_object_of_the_first_stack():
    names = [{(item["kind"], item["metadata"]["name"]) for item in made.manifests()} for made in (first(), second())]
    assert names[0] & names[1] == set()


def test_the_second_model_example_refers_by_default_to_the_stack_of_its_own_name():
    other = FirstStack()
    second(other)
    second(other, **{"second-model:servingStack": "acme/serving/prod"})
    assert other.asked == ["organization/serving/test", "acme/serving/prod"]


def test_the_second_model_example_reads_only_outputs_that_the_first_stack_has():
    read = set(re.findall(r'_output\("(\w+)"\)', program("second-model").read_text()))
    assert read
    assert read <= first().outputs.keys()
