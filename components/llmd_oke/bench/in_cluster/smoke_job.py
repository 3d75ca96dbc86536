"""The program of the Job that benchmarks a model in its cluster.

It measures, writes the result to a ConfigMap and its last words to the container's termination message, and ends with 0
if the model is as good as was asked, with 1 if it is not or could not be measured.
"""

import base64
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmd_oke.bench.deployment import circumstances
from llmd_oke.bench.in_cluster.cluster import InCluster, from_environment
from llmd_oke.bench.in_cluster.parcels import owned
from llmd_oke.bench.in_cluster.smoke_labels import JOB_ANNOTATION, LABEL
from llmd_oke.bench.in_cluster.smoke_result import RESULT_KEY, Parcel, failure_words, last_words, pack
from llmd_oke.bench.smoke.request import SmokeRequest, from_json
from llmd_oke.bench.smoke.resolving import resolve
from llmd_oke.bench.smoke.smoke import SmokeResult, run_smoke
from llmd_oke.errors import KitError
from llmd_oke.progress import PlainProgress, Ticker

TERMINATION_LOG = Path("/dev/termination-log")

LOG_INTERVAL_S = 10.0
"""Between two lines of log within a phase."""


def main() -> int:
    """Benchmarks what is asked for; the arguments name the files of request and facts."""
    request_file, facts_file = map(Path, sys.argv[1:])
    request = replace(from_json(request_file.read_bytes()), facts=json.loads(facts_file.read_text()))
    try:
        result = run(request, os.environ, from_environment(os.environ))
    except KitError as error:
        return _end(failure_words(request.service, error), 1)
    return _end(last_words(request.service, result), 0 if result.passed else 1)


def run(request: SmokeRequest, environment: Mapping[str, str], cluster: InCluster) -> SmokeResult:
    """Benchmarks and writes the result's ConfigMap, which belongs to the Job of this pod and goes with it.

    Raises:
        KitError: the model is not there or does not answer, or the result can't be written.
    """
    how = circumstances.from_environment(environment)
    said = Ticker(PlainProgress(sys.stdout), LOG_INTERVAL_S)
    result = run_smoke(resolve(request, cluster, how), lambda news: said.tell(str(news), news.phase))
    cluster.apply(result_config_map(request, pack(request, how, result), environment))
    return result


def result_config_map(request: SmokeRequest, parcel: Parcel, environment: Mapping[str, str]) -> dict[str, Any]:
    """The ConfigMap of a result."""
    job, uid = environment["JOB_NAME"], environment["JOB_UID"]
    labels, annotations = {LABEL: request.service}, {JOB_ANNOTATION: job}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned(environment["RESULT_NAME"], request.namespace, job, uid, labels, annotations),
        "data": dict(parcel.texts),
        "binaryData": {RESULT_KEY: base64.b64encode(parcel.result).decode()},
    }


def _end(words: str, code: int) -> int:
    print(words, flush=True)
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(words)
    return code
