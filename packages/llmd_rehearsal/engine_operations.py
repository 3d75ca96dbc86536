"""Operations of the real engine in a rehearsal's local cluster, as started from the host."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke import config
from llmd_oke.catalogue.operations import remedy_for
from llmd_oke.operations.guards import SERVERS, Displacement, displacement, gpus_of
from llmd_oke.operations.locks import file_lock
from llmd_oke.operations.previews import of_document
from llmd_oke.operations.pulumi_cli import end_group
from llmd_oke.planning import Plan

from llmd_rehearsal.cluster_plan import PLUGIN_PORTS
from llmd_rehearsal.cluster_spec import end_of_log
from llmd_rehearsal.engine_project import (
    BEFORE,
    DEPLOYED,
    PREVIEWED,
    checkpoint_file,
    copy_project,
    install_package,
    latest,
    mend,
)
from llmd_rehearsal.local_cluster import command_line
from llmd_rehearsal.rehearsal import Prepared
from llmd_rehearsal.running_rehearsals import inside_environment

ENGINE_END_TIMEOUT_S = 30.0

ENGINE_FREE_TIMEOUT_S = 3600.0
"""Seconds to wait for another process's operation on the same stack."""

PASSED_ON = ("PULUMI_EXPERIMENTAL", "PULUMI_SKIP_CHECKPOINTS")
"""Environment variables of the user that are passed to the rehearsal's engine. With both set to `true` the engine saves
its state only at the end, which large stacks need (docs/how-to/large-stacks.md); a killed engine then leaves resources
that the state doesn't have.
"""


def run_engine(
    prepared: Prepared,
    operation: str,
    progress: Progress,
    *,
    targets: Sequence[str] = (),
    unprotect: bool = False,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Run an operation of the real engine in the local cluster (`up`, `preview`, `refresh`, `destroy`, `drift`,
    `replace` or `forget`) and return its result as a mapping (`engine.EngineResult`).

    Args:
        prepared: the rehearsal.
        operation: name of the operation.
        progress: receives the engine's reports.
        targets: for `destroy`, the URNs to delete with all that depend on them (all resources if empty); for `replace`,
            names of nodes.
        unprotect: lets `destroy` delete protected resources.
        more: further options of `replace`.

    If interrupted, the engine saves its state before it ends, so that the next operation can continue.

    Raises:
        KitError: the operation failed; the message has the engine's reason.
    """
    with _free_engine(prepared, progress):
        _mend_state(prepared, progress, DEPLOYED, PREVIEWED)
        options = [word for target in targets for word in ("--target", target)]
        options += ["--unprotect"] if unprotect else []
        if time := prepared.scaling_time:
            options += ["--scaling-speed", str(time.speed), "--time-scale", str(time.time_scale)]
        options += [*more, *(["--one-at-a-time"] if operation == "up" and _is_upgrade(prepared) else [])]
        return _run_engine(prepared, operation, options, progress)


def deploy_before(prepared: Prepared, project: Path, progress: Progress) -> dict[str, Any]:
    """Update the stack of the same name of another project in the local cluster of a rehearsal, for programs that read
    its outputs, and return the result.

    Raises:
        KitError: the update failed.
    """
    other = replace(prepared, project=project)
    progress.step(f"updating the stack {prepared.stack} of {config.project_name(project)} first")
    with _free_engine(prepared, progress):
        _mend_state(other, progress, BEFORE)
        return _run_engine(other, "up", (), progress, BEFORE)


def _free_engine(prepared: Prepared, progress: Progress) -> AbstractContextManager[None]:
    """Wait until no other operation of this rehearsal runs the engine, and keep others waiting meanwhile."""
    lock_file = prepared.state / "engine.lock"
    return file_lock(lock_file, "finish with the engine", progress, ENGINE_FREE_TIMEOUT_S)


def _mend_state(prepared: Prepared, progress: Progress, *kinds: str) -> None:
    """Replace the state file of the project in one of the folders `kinds` by a valid copy if it is truncated."""
    checkpoint = checkpoint_file(prepared.state, prepared.stack, kinds)
    if copy := mend(checkpoint, _start_over(prepared)):
        progress.step(f"the stack's state was not whole, as where its disk was full: going on from {copy.name}")


def _start_over(prepared: Prepared) -> str:
    return command_line(prepared.state.parents[1], f"down --stack {prepared.stack}")


def _is_upgrade(prepared: Prepared) -> bool:
    """Tell whether clusters or node pools get another Kubernetes version; these are updated one at a time, as by
    `llmd-oke up`.
    """
    created = prepared.plan.created
    if created is None:
        return False
    after = {created.kubernetes_version, *(pool.kubernetes_version for pool in created.gpu_pools)}
    resources = latest(checkpoint_file(prepared.state, prepared.stack)).get("resources") or ()
    before = {resource.get("inputs", {}).get("kubernetesVersion") for resource in resources}
    return bool(before - after - {None})


def _run_engine(
    prepared: Prepared, operation: str, options: Sequence[str], progress: Progress, folder: str | None = None
) -> dict[str, Any]:
    folder = folder or (PREVIEWED if operation in {"drift", "preview"} else DEPLOYED)
    cut = prepared.real.stack if prepared.real else None
    copy = copy_project(prepared.project, prepared.stack, prepared.state, prepared.router, folder, cut)
    prepared.plugin.install(copy.pulumi_home)
    prepared.inventory.install_languages(copy.pulumi_home)
    install_package(copy.pulumi_home)
    result_file = prepared.state / "engine.json"
    result_file.unlink(missing_ok=True)
    project = ["--project", str(copy.folder), "--stack", prepared.stack, "--result", str(result_file)]
    modules = [word for module in program_modules(prepared.plan) for word in ("--load", module)]
    argv = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "llmd_rehearsal.engine",
        *project,
        operation,
        *options,
        *modules,
    ]
    environment = {**copy.variables(), **_engine_environment(prepared)}
    log = prepared.cluster.folder.log_file("engine")
    with (
        log.open("w") as errors,
        prepared.cluster.process_inside(
            argv, env=environment, folder=copy.folder, output=subprocess.PIPE, errors=errors
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                progress.detail(line.rstrip())
            process.wait(ENGINE_END_TIMEOUT_S)
        except KeyboardInterrupt:
            progress.step("interrupted: the engine ends what it has begun")
            end_group(process, ENGINE_END_TIMEOUT_S)
            progress.step("the rehearsal stays up as it is; the next run goes on from there")
            raise
    if not result_file.exists():
        ended = f"The engine ended with exit code {process.returncode} and without a result"
        raise KitError(f"{ended}: {end_of_log(log, lines=1).strip()}", f"Its log is {log}.")
    result: dict[str, Any] = json.loads(result_file.read_text())
    if "error" in result:
        again = f"Change what it complains of and rehearse again, or start over: {_start_over(prepared)}"
        remedy = result["remedy"] or remedy_for(result["error"]) or again
        raise KitError(result["error"], remedy)
    return result


CREATED_CLUSTER_MODULES = (
    "llmd_oke.program.cluster",
    "pulumi_oci.containerengine.addon",
    "pulumi_oci.containerengine.cluster",
    "pulumi_oci.containerengine.node_pool",
    "pulumi_oci.core.compute_cluster",
    "pulumi_oci.core.default_security_list",
    "pulumi_oci.core.nat_gateway",
    "pulumi_oci.core.network_security_group_security_rule",
    "pulumi_oci.core.route_table",
    "pulumi_oci.core.security_list",
    "pulumi_oci.core.service_gateway",
    "pulumi_oci.core.subnet",
    "pulumi_oci.core.vcn",
    "pulumi_oci.identity.policy",
)
"""Modules that every program that creates a cluster imports; those of OCI's package load all of its types."""


def program_modules(plan: Plan) -> list[str]:
    """Return the modules that a stack's program imports; OCI's package is among them only if the stack creates a
    cluster.
    """
    created = isinstance(plan.cluster, config.CreateCluster)
    return ["llmd_oke.program", *(CREATED_CLUSTER_MODULES if created else ())]


def _engine_environment(prepared: Prepared) -> Mapping[str, str]:
    """Return the environment variables of the engine and its program: kubeconfig, PATH, the stand-in plug-ins to attach
    to, and the user's values of `PASSED_ON`.
    """
    programs = prepared.inventory.link_engine(prepared.state / "bin")
    stand_ins = PLUGIN_PORTS.items() if not prepared.plugin.is_real else [("oci", PLUGIN_PORTS["oci"])]
    attached = [f"{name}:{port}" for name, port in stand_ins]
    return {
        **inside_environment(prepared.state),
        "PATH": f"{programs}:{prepared.cluster.environment()['PATH']}",
        "PULUMI_DEBUG_PROVIDERS": ",".join(attached),
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
    }


def pre_scale_down(prepared: Prepared, progress: Progress) -> Displacement | None:
    """Delete servers that must be removed before new servers fit the nodes, and return the deleted servers; None if no
    server must be removed.

    A preview is only run if servers leave the stack.

    Raises:
        KitError: the preview or the deletion failed; the message has the reason.
    """
    with _free_engine(prepared, progress):
        _mend_state(prepared, progress, DEPLOYED, PREVIEWED)
    if not removed_servers(checkpoint_file(prepared.state, prepared.stack), prepared.plan):
        return None
    progress.step("previewing, because servers leave the stack")
    preview = of_document(run_engine(prepared, "preview", progress))
    servers = displacement(preview, prepared.plan.gpus)
    if servers is not None:
        progress.step(str(servers))
        run_engine(prepared, "destroy", progress, targets=[change.urn for change in servers.first])
    return servers


def removed_servers(file: Path, plan: Plan) -> list[str]:
    """Return the names of the model servers in the engine's state that the plan no longer has. Servers of which the
    plan deploys a new version beside the old one aren't counted, as the plan reserves nodes for both versions.
    """
    resources: list[dict[str, Any]] = latest(file).get("resources") or []
    deployed = [
        resource["inputs"]["metadata"]["name"]
        for resource in resources
        if resource["type"] in SERVERS and gpus_of(resource.get("inputs") or {})
    ]
    planned = [
        f"{unit.name}{'-[0-9a-f]+' if model.update_way == 'beside' else ''}{suffix}"
        for model in plan.models
        for unit in model.units
        for suffix in ([""] if model.disaggregated_set else [f"-{role.role}" for role in unit.roles])
    ]
    return [name for name in deployed if not any(re.fullmatch(pattern, name) for pattern in planned)]
