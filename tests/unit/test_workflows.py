"""The workflows run what has been read, and with no more rights than they need."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_oke.catalogue.operations import pipeline_limits
from llmd_oke.catalogue.releases import default_release
from llmd_oke.config import stacks
from llmd_oke.pipelines.comment import MARK
from llmd_oke.pipelines.stages import MAX_STAGES
from llmd_oke.values import read_yaml
from llmd_rehearsal.program_definitions import definitions
from llmd_rehearsal.programs import locate

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$")

STAGES = tuple(f"stage-{number}" for number in range(1, MAX_STAGES + 1))

RIGHTS = {
    ("audit", "audit"): {"contents": "read"},
    ("audit", "images"): {"contents": "read"},
    ("check", "check"): {"contents": "read"},
    ("faults", "faults"): {"contents": "read"},
    ("faults", "empty-machine"): {"contents": "read"},
    ("measurements", "measure"): {"contents": "read"},
    ("deploy", "choose"): {},
    ("deploy", "limit"): {"contents": "read"},
    ("deploy", "deploy"): {"contents": "read", "id-token": "write"},
    ("audit", "upstream"): {"contents": "read"},
    ("drift", "stacks"): {"contents": "read"},
    ("drift", "drift"): {"contents": "read", "id-token": "write"},
    ("preview", "changes"): {"contents": "read"},
    ("preview", "rehearse"): {"contents": "read"},
    ("preview", "preview"): {"actions": "read", "contents": "read", "id-token": "write"},
    ("preview", "comment"): {"actions": "read", "contents": "read"},
    ("preview", "post"): {"actions": "read", "pull-requests": "write"},
    ("release", "build"): {"contents": "read"},
    ("release", "publish"): {"actions": "read", "contents": "write"},
    ("promote", "stages"): {"actions": "read", "contents": "read"},
    **{("promote", name): {"actions": "read", "contents": "read", "id-token": "write"} for name in STAGES},
}
"""What each job may do; another right, or another job, has to be written here too."""

OF_BACKEND = ("PULUMI_CONFIG_PASSPHRASE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SECRETS = {
    **{
        place: {f"DEPLOY_{name}" for name in (*OF_BACKEND, "OCI_CLIENT_SECRET")}
        for place in (("deploy", "deploy"), *(("promote", name) for name in STAGES))
    },
    ("drift", "drift"): {f"DRIFT_{name}" for name in (*OF_BACKEND, "OCI_CLIENT_SECRET")},
    ("preview", "preview"): {"PREVIEW_OCI_CLIENT_SECRET"},
}
"""No token of Pulumi Cloud: jobs sign in by their own. Who reads a state can decrypt it, so a preview reads none."""


@cache
def workflow(name: str) -> dict[str, Any]:
    return read_yaml(ROOT / ".github" / "workflows" / f"{name}.yml")


@cache
def jobs() -> dict[tuple[str, str], dict[str, Any]]:
    return {(file.stem, name): job for file in WORKFLOWS for name, job in workflow(file.stem)["jobs"].items()}


def of_trigger(name: str) -> dict[str, Any]:
    return workflow(name)[True]  # YAML 1.1 reads `on` so


IN_AUDIT = {
    "audit": ("scripts/audit",),
    "images": (
        "scripts/audit --images",
        "for stack in $(scripts/pipeline stacks); do",
        '.venv/bin/llmd-oke images verify --stack "$stack" || failed=1',
        'exit "$failed"',
    ),
    "upstream": ("scripts/pipeline upstream --summary summary.md",),
}
"""Lines that jobs of the nightly audit run."""


@pytest.mark.parametrize("name", IN_AUDIT)
def test_jobs_of_the_nightly_audit_workflow_fail_if_their_scripts_fail(name: str):
    job = jobs()["audit", name]
    lines = [line.strip() for step in job["steps"] for line in step.get("run", "").splitlines()]
    assert [line for line in IN_AUDIT[name] if line not in lines] == []
    assert "continue-on-error" not in {*job, *(key for step in job["steps"] for key in step)}
    assert of_trigger("audit")["schedule"]


def test_image_scanners_are_pinned_to_a_version():
    used = {
        step["uses"].partition("@")[0]: step.get("with", {})
        for step in jobs()["audit", "images"]["steps"]
        if "uses" in step
    }
    assert re.fullmatch(r"v\d+\.\d+\.\d+", used["aquasecurity/setup-trivy"]["version"])
    assert re.fullmatch(r"v\d+\.\d+\.\d+", used["sigstore/cosign-installer"]["cosign-release"])


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_action_is_pinned_by_commit_with_its_version_as_comment(file: Path):
    used = [line.strip(" -") for line in file.read_text().splitlines() if "uses:" in line]
    assert [line for line in used if not PINNED.fullmatch(line)] == []


def test_actionlint_finds_faults_in_a_faulty_workflow_and_none_in_others(tmp_path: Path):
    wrong = tmp_path / "wrong.yml"
    text = (ROOT / ".github/workflows/deploy.yml").read_text()
    wrong.write_text(text.replace("needs.limit.outputs", "needs.limt.outputs"))
    assert '"limt" is not defined' in lint(str(wrong))
    assert lint(*map(str, WORKFLOWS)) == ""


def lint(*files: str) -> str:
    """Return actionlint's words about these files, without other linters, which it runs where a machine has them."""
    program = locate("actionlint")
    if program is None:
        pytest.skip("no actionlint: llmd-oke rehearse programs --tests builds it")
    argv = [program.path, "-no-color", "-shellcheck=", "-pyflakes=", *files]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


def test_every_workflow_job_has_exactly_the_permissions_it_needs():
    assert set(jobs()) == set(RIGHTS)
    for place, job in jobs().items():
        assert job.get("permissions", workflow(place[0])["permissions"]) == RIGHTS[place], place


def test_workflow_secrets_belong_to_environments_and_are_used_by_known_jobs_only():
    for place, job in jobs().items():
        used = set(re.findall(r"secrets\.(\w+)", yaml.safe_dump(job)))
        assert used == SECRETS.get(place, set()), place
        assert bool(used) <= ("environment" in job)


def test_no_script_in_a_workflow_contains_a_github_expression():
    scripts = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    assert scripts
    assert [script for script in scripts if "${{" in script] == []


def test_no_workflow_runs_foreign_code_with_the_repositorys_permissions():
    for file in WORKFLOWS:
        assert not {"pull_request_target", "workflow_run", "issue_comment"} & set(of_trigger(file.stem))
    for place, job in jobs().items():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False, place
                assert {right for right, how in RIGHTS[place].items() if how == "write"} <= {"id-token"}


def test_stacks_offered_by_the_deploy_workflow_have_a_stack_file():
    asked = of_trigger("deploy")["workflow_dispatch"]["inputs"]["stack"]
    assert asked["type"] == "choice"
    assert set(asked["options"]) <= set(stacks(ROOT))
    (step,) = workflow("deploy")["jobs"]["choose"]["steps"]
    assert f"\n  {'|'.join(asked['options'])})" in step["run"]


def test_the_deploy_workflow_uses_only_validated_stack_names():
    deploy = workflow("deploy")["jobs"]["deploy"]
    chosen = "${{ needs.choose.outputs.stack }}"
    assert deploy["needs"] == ["choose", "limit"]
    assert deploy["environment"] == chosen
    assert deploy["concurrency"] == {"group": f"deploy-{chosen}", "cancel-in-progress": False}
    assert "inputs.stack" not in yaml.safe_dump(deploy)
    assert "concurrency" not in workflow("deploy")


def test_workflows_deploy_and_check_drift_only_from_the_main_branch():
    for place in (("deploy", "choose"), ("deploy", "limit"), ("deploy", "deploy"), ("drift", "stacks")):
        assert jobs()[place]["if"] == "github.ref == 'refs/heads/main'"
    assert jobs()["drift", "drift"]["needs"] == "stacks"
    assert jobs()["promote", "stages"]["if"] == "vars.LLMD_OKE_PROMOTE && github.ref == 'refs/heads/main'"
    assert all("stages" in jobs()["promote", name]["needs"] for name in STAGES)


def test_the_deploy_job_takes_its_timeout_from_the_pipeline_limit_command():
    limit, deploy = (workflow("deploy")["jobs"][name] for name in ("limit", "deploy"))
    assert deploy["timeout-minutes"] == "${{ fromJSON(needs.limit.outputs.minutes) }}"
    assert limit["outputs"] == {"minutes": "${{ steps.limit.outputs.minutes }}"}
    step = next(step for step in limit["steps"] if step.get("id") == "limit")
    assert 'scripts/pipeline limit --stack "$STACK" ${RUNNER:+--own-runner}' in step["run"]
    assert step["env"]["STACK"] == "${{ needs.choose.outputs.stack }}"
    variable = step["env"]["RUNNER"].strip("${} ")
    assert deploy["runs-on"] == f"${{{{ {variable} || 'ubuntu-24.04' }}}}"


def test_workflow_jobs_that_deploy_nothing_end_within_hosted_runners_limits():
    for place, job in jobs().items():
        if place not in {("deploy", "deploy"), *(("promote", name) for name in STAGES)}:
            assert job["timeout-minutes"] <= pipeline_limits().hosted_job_minutes, place


ROUTER = '--branch {version} https://{module} "$RUNNER_TEMP/llm-d-router"'


@pytest.mark.parametrize(
    ("prepared", "variable", "folder", "test"),
    [
        (ROUTER, "LLMD_OKE_ROUTER_SOURCE", "llm-d-router", "test_bed/programs/test_llm_d_router.py"),
        (
            'npm install --prefix "$RUNNER_TEMP/typescript"',
            "LLMD_OKE_NODE_MODULES",
            "typescript/node_modules",
            "rehearsal/end_to_end/test_other_languages.py",
        ),
    ],
    ids=["router", "typescript"],
)
def test_the_nightly_workflow_prepares_sources_that_its_tests_read(
    prepared: str, variable: str, folder: str, test: str
):
    steps = [step for step in jobs()["faults", "faults"]["steps"] if "run" in step]
    version, module = default_release().endpoint_picker.program.version, definitions().builds["llm-d-router"].asks_for
    command = prepared.format(version=version, module=module)
    (before,) = [place for place, step in enumerate(steps) if command in step["run"]]
    (tested,) = [place for place, step in enumerate(steps) if "scripts/test -m nightly" in step["run"]]
    assert before < tested
    assert steps[tested]["env"][variable] == f"${{{{ runner.temp }}}}/{folder}"
    assert re.search(rf"--preserve-env=\S*\b{variable}\b", steps[tested]["run"])
    assert f'environ.get("{variable}")' in (ROOT / "tests" / test).read_text()


def test_the_nightly_drift_workflow_signs_in_as_the_drift_identity():
    (nightly,) = of_trigger("drift")["schedule"]
    assert re.fullmatch(r"\d+ [0-5] \* \* \*", nightly["cron"])
    drift = workflow("drift")["jobs"]["drift"]
    assert drift["strategy"]["matrix"]["stack"] == "${{ fromJSON(needs.stacks.outputs.stacks) }}"
    assert drift["environment"] == "drift"
    others = re.compile(r"DEPLOY_|PREVIEW|LLMD_OKE_RUNNER|LLMD_OKE_TUNNEL|inputs\.")
    assert not others.search((ROOT / ".github/workflows/drift.yml").read_text())


def test_each_promotion_stage_has_its_own_environment_and_group_and_the_history():
    promote = workflow("promote")["jobs"]
    for number, name in enumerate(STAGES):
        job, stack = promote[name], f"${{{{ fromJSON(needs.stages.outputs.stacks)[{number}] }}}}"
        assert job["environment"] == job["env"]["STACK"] == stack
        assert job["concurrency"] == {"group": f"deploy-{stack}", "cancel-in-progress": False}
        assert job["steps"] == promote["stage-1"]["steps"]
        if number:
            assert job["needs"] == ["stages", STAGES[number - 1]]
            assert job["if"] == stack.strip("${} ")
    checkout, *steps = promote["stage-1"]["steps"]
    assert checkout["with"]["fetch-depth"] == 0, "the history that a rollback needs"
    names = [step["name"] for step in steps if "name" in step]
    assert names.index("Last good") < names.index("Promote")


def test_pull_requests_of_forks_get_no_secrets_and_no_preview_comment():
    own = "github.event.pull_request.head.repo.full_name == github.repository"
    of_preview = {name: job for (file, name), job in jobs().items() if file == "preview"}
    for name, job in of_preview.items():
        needs_own = "environment" in job or "write" in RIGHTS["preview", name].values()
        assert (own in job.get("if", "")) == needs_own, name


def test_a_preview_comment_is_written_by_code_of_the_base_branch():
    checkout, *_ = workflow("preview")["jobs"]["comment"]["steps"]
    assert checkout["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    assert all("uses" not in step for step in workflow("preview")["jobs"]["post"]["steps"])


def test_the_preview_workflow_has_no_credentials_of_deployments_or_a_backend():
    text = (ROOT / ".github/workflows/preview.yml").read_text()
    assert not re.search("LLMD_OKE_RUNNER|DEPLOY_", text)
    preview = workflow("preview")["jobs"]["preview"]
    assert preview["environment"] == "preview"
    assert preview["strategy"]["matrix"]["stack"] == "${{ fromJSON(needs.changes.outputs.stacks) }}"
    assert not re.search(r"PULUMI_|AWS_", yaml.safe_dump(preview))
    (step,) = [step for step in preview["steps"] if "scripts/pipeline" in step.get("run", "")]
    assert "--states states" in step["run"]


def test_previews_use_stack_states_published_by_main_without_secrets():
    for name, job in (("deploy", "deploy"), ("drift", "drift")):
        steps = workflow(name)["jobs"][job]["steps"]
        (written,) = [step for step in steps if "pipeline state" in step.get("run", "")]
        assert written["run"] == 'scripts/pipeline state --stack "$STACK" --output "states/$STACK.json"'
    (fetched,) = [step for step in workflow("preview")["jobs"]["preview"]["steps"] if step.get("name") == "State"]
    assert fetched["run"].endswith('scripts/artifact "state-$STACK" states')
    script = (ROOT / "scripts" / "artifact").read_text()
    assert '$run.head_branch == "main"' in script
    assert "$run.head_repository_id == $run.repository_id" in script


def test_jobs_that_sign_in_pass_complete_backend_and_identity_settings():
    backend = {"PULUMI_BACKEND_URL", "LLMD_OKE_PULUMI_ORGANIZATION", *OF_BACKEND}
    identity = {f"OCI_TOKEN_EXCHANGE_{name}" for name in ("DOMAIN_URL", "CLIENT_ID", "CLIENT_SECRET")}
    needs = dict.fromkeys(("deploy", "drift", "promote"), backend | identity)
    needs |= {"state": backend, "preview": identity}
    found: set[str] = set()
    for place, job in jobs().items():
        for step in job["steps"]:
            command = re.search(r"scripts/pipeline (\w+)", step.get("run", ""))
            if command and command[1] in needs:
                found.add(command[1])
                assert needs[command[1]] <= step["env"].keys(), place
    assert found == needs.keys()


def test_posting_a_preview_edits_the_existing_pull_request_comment():
    (step,) = workflow("preview")["jobs"]["post"]["steps"]
    assert "--method PATCH" in step["run"]
    assert "github-actions[bot]" in step["run"]
    assert f"marker='{MARK}'" in step["run"]


def test_a_release_takes_two_equal_builds_and_is_published_without_repository_code():
    build, publish = (workflow("release")["jobs"][name] for name in ("build", "publish"))
    assert of_trigger("release") == {"push": {"tags": ["v[0-9]*"]}}
    assert any("./scripts/build" in step.get("run", "") for step in build["steps"])
    assert [step for step in publish["steps"] if "uses" in step] == []
    compared, checked, released = publish["steps"][0]["run"].splitlines()[1:]
    first, second = (f"built/{runner}/SHA256SUMS" for runner in build["strategy"]["matrix"]["runner"])
    assert compared == f"cmp {first} {second}"
    assert "sha256sum --check" in checked
    assert released.startswith("gh release create")


def test_workflows_install_the_locked_version_of_pulumi():
    (locked,) = re.findall(r"^pulumi==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    used = [
        step.get("with", {}).get("pulumi-version")
        for job in jobs().values()
        for step in job["steps"]
        if step.get("uses", "").startswith("pulumi/actions")
    ]
    assert set(used) == {locked}
