"""`llmd-oke preflight`: checks that the tenancy provides what a stack needs, and that its nodes can pull
their images.
"""

from collections.abc import Sequence
from pathlib import Path

import typer
from llmd_base.errors import KitError
from rich.markup import escape

from llmd_oke.access.addresses import region_of
from llmd_oke.cli import console, options, token
from llmd_oke.config import project_name, settings
from llmd_oke.operations.cluster_checks import certificate_findings, prometheus_findings
from llmd_oke.operations.findings import Finding, Verdict, exit_code
from llmd_oke.operations.preflight import preflight as look
from llmd_oke.operations.pulumi_cli import pulumi_cli
from llmd_oke.operations.registries import chart_findings, registry_findings
from llmd_oke.planning import plan_stack_file
from llmd_oke.planning.container_images import chart_archives, pulled_images

_COLOURS = {Verdict.FINE: "green", Verdict.PROBLEM: "red bold", Verdict.UNKNOWN: "magenta"}


def preflight(
    stack: options.Stack,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
    auth: token.AuthOption = None,
    profile: token.Profile = None,
    region: options.Region = None,
) -> None:
    """Query OCI for limits, capacity, node images, policies, networks and versions, registries for container images and
    charts, and the cluster for certificates and its Prometheus.

    Ends with 1 if there is a problem.

    Nothing is changed. The stack file itself is checked first.
    """
    plan = plan_stack_file(project, stack)
    config = plan.config
    where = region_of(config, region)
    who = token.sign_in_of(settings(project, stack), auth, profile)
    findings = look(
        token.client_of(who, where),
        config,
        link_of=lambda pool: _image_link(project, stack, pool),
        stack_tag=f"{project_name(project)}/{stack.rsplit('/', 1)[-1]}",
    )
    findings += registry_findings(pulled_images(plan), console.progress())
    findings += chart_findings(chart_archives(plan), console.progress(), plan.registry_mirror)
    findings += certificate_findings(plan)
    findings += prometheus_findings(plan)
    print_findings(stack, findings, as_json=as_json)
    raise typer.Exit(exit_code(findings))


def print_findings(stack: str, findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print the findings of checks of a stack's prerequisites, as text or as JSON."""
    if as_json:
        console.show_json({"stack": stack, "findings": [finding.as_json() for finding in findings]})
        return
    for finding in findings:
        colour, where = _COLOURS[finding.verdict], f"[bold]{escape(finding.path)}[/]"
        console.output().print(f"[{colour}]{finding.verdict:8}[/] {finding.check:9} {where}: {escape(finding.value)}")
        if finding.remedy:
            console.output().print(f"                   [dim]{escape(finding.remedy)}[/]")


def _image_link(project: Path, stack: str, pool: str) -> str | None:
    """Return the secret URI of a pool's image, which the Pulumi CLI decrypts; None if the stack has none, or without
    the CLI.
    """
    try:
        return pulumi_cli(project, stack).secret(f"llmd-oke:imageLinks.{pool}")
    except KitError:
        return None
