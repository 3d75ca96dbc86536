"""The example project that imports one component, as its own users would test it."""

import runpy

from llmd_oke.testing import declared
from render_support import PROJECT, vllm

EXAMPLE = PROJECT / "examples" / "import-component" / "__main__.py"


def example(**config: str):
    return declared(lambda: runpy.run_path(str(EXAMPLE), run_name="__main__"), config=config)


def test_the_example_program_serves_a_model_with_one_component():
    made = example()
    assert len(made.of_type("llmd-oke:index:AggregatedUnit")) == 1
    deployment = made.kubernetes("Deployment", "gpt-oss-120b-aggregated")
    assert deployment["spec"]["replicas"] == 2
    assert vllm(made, "gpt-oss-120b-aggregated")["resources"]["limits"]["amd.com/gpu"] == "1"


def test_the_replicas_setting_of_the_example_program_reaches_its_deployment():
    deployment = example(**{"chat:replicas": "5"}).kubernetes("Deployment", "gpt-oss-120b-aggregated")
    assert deployment["spec"]["replicas"] == 5


def test_the_example_program_declares_a_configmap_of_its_own_beside_the_component():
    made = example()
    assert made.kubernetes("ConfigMap", "address")["data"]["url"] == made.outputs["url"]
    assert made.outputs["url"] == "http://gpt-oss-120b.chat.svc.cluster.local"
