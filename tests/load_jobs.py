"""A load that pods send, and the settings of their Job."""

from llmd_bench.load.pod_load import LoadRequest
from llmd_oke.catalogue.container_images import parse_reference
from llmd_oke.objects import resolve_shape
from llmd_oke.serving.jobs import JobSettings

IMAGE = parse_reference("ghcr.io/llm-d/vllm:1")
PLACE = JobSettings("llm-d", "load-gpt-1", IMAGE, resolve_shape("BM.GPU.MI300X.8"))
REQUEST = LoadRequest(
    namespace="llm-d",
    job="load-gpt-1",
    base_url="http://gpt",
    model="m",
    shapes=("constant:4",),
    requests=None,
    duration_s=5.0,
    input_tokens="64",
    output_tokens="8",
    seed=0,
    run="r",
    parallelism=3,
)
