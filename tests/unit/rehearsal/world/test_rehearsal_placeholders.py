from pathlib import Path

from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from llmd_oke import planning
from llmd_oke.rehearsal.placeholders import count_images
from llmd_oke.rehearsal.plugins import KubernetesPlugin
from llmd_oke.rehearsal.pods.pod_worker import SIMULATED_ANNOTATION
from llmd_oke.rehearsal.simulated import SIMULATED, simulated

PROJECT = Path(__file__).resolve().parents[4]


def pod(marked: str | None, **images: str) -> Pod:
    annotations = {SIMULATED_ANNOTATION: marked} if marked else None
    containers = [Container(name=name, image=image) for name, image in images.items()]
    return Pod(metadata=ObjectMeta(annotations=annotations), spec=PodSpec(containers=containers))


def test_images_without_a_program_are_counted_by_their_pods():
    pods = [pod("a,b", a="one:1", b="two:2", c="real:3"), pod("a", a="one:1"), pod(None, c="real:3")]
    assert count_images(pods) == {"one:1": 2, "two:2": 1}


def test_they_are_told_beside_what_is_always_simulated():
    plan = planning.plan_stack_file(PROJECT, "rehearsal")
    told = simulated(plan, KubernetesPlugin("4.30.0"), {"one:1": 2, "two:2": 1})
    assert told[: len(SIMULATED)] == SIMULATED
    assert told[-2:] == ("one:1 (no program, pods: 2)", "two:2 (no program, pods: 1)")
