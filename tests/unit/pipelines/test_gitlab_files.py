"""GitLab's pipeline files, written and generated: held to GitLab's own schema, and to what jobs may have."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_oke.pipelines.gitlab import JOBS_FILE, promotion_pipeline, stacks_pipeline
from llmd_oke.pipelines.stages import read_stages
from llmd_oke.values import read_yaml
from stack_files import PROJECT

FILES = (PROJECT / ".gitlab-ci.yml", PROJECT / JOBS_FILE)


class _Loader(yaml.SafeLoader):
    """GitLab's YAML: `!reference` names parts of other jobs."""


_Loader.add_constructor("!reference", lambda loader, node: loader.construct_sequence(node))


def jobs() -> dict[str, Any]:
    documents = [yaml.load(file.read_text(), _Loader) for file in FILES]  # noqa: S506 - a safe loader
    return {name: job for document in documents for name, job in document.items() if isinstance(job, dict)}


def generated() -> dict[str, str]:
    stages = read_stages(PROJECT)
    return {
        "promotion": promotion_pipeline(stages, {stage.stack: 60 for stage in stages.stages}),
        "change": stacks_pipeline(("preview", "rehearse"), ["dev", "prod"], comments=True),
        "nothing": stacks_pipeline(("preview",), [], comments=False),
        "untouched": stacks_pipeline(("preview",), [], comments=True),
        "night": stacks_pipeline(("drift", "verify"), [f"s{number}" for number in range(60)], comments=False),
    }


def test_the_gitlab_ci_schema_refuses_no_pipeline_but_one_with_an_invalid_value(tmp_path: Path):
    pytest.importorskip("check_jsonschema")
    wrong = generated()["promotion"].replace("when: manual", "when: by hand")
    for name, text in {**generated(), "wrong": wrong}.items():
        (tmp_path / f"{name}.yml").write_text(text)
    schema = ("--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci")  # asks nobody
    argv = [sys.executable, "-m", "check_jsonschema", *schema, *FILES, *tmp_path.glob("*.yml")]
    faults = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    assert "by hand" in faults
    assert set(re.findall(r"(\S+)::", faults)) == {str(tmp_path / "wrong.yml")}


def test_generated_gitlab_jobs_promote_in_stage_order_and_approvals_are_manual():
    document = yaml.safe_load(generated()["promotion"])
    stages = read_stages(PROJECT).stages
    own = [document[f"promote {stage.stack}"] for stage in stages]
    assert [job["stage"] for job in own] == document["stages"]
    assert [job["environment"]["name"] for job in own] == [stage.stack for stage in stages]
    assert [job.get("when") == "manual" for job in own] == [stage.approval for stage in stages]
    assert all(job.get("allow_failure") is False for job in own if "when" in job)


def test_each_generated_gitlab_job_extends_a_job_of_the_committed_jobs_file():
    known = yaml.load((PROJECT / JOBS_FILE).read_text(), _Loader)  # noqa: S506
    for text in generated().values():
        document = yaml.safe_load(text)
        extended = {job["extends"] for job in document.values() if isinstance(job, dict) and "extends" in job}
        assert extended <= known.keys()


def test_the_gitlab_comment_job_needs_preview_and_rehearsal_of_each_touched_stack():
    needs = yaml.safe_load(generated()["change"])["comment"]["needs"]
    assert needs[0] == {"pipeline": "$PARENT_PIPELINE", "job": "changes"}
    assert [need["job"] for need in needs[1:]] == ["preview dev", "preview prod", "rehearse dev", "rehearse prod"]


def test_all_gitlab_jobs_run_in_one_image_with_the_locked_digest():
    known = read_yaml(PROJECT / "values" / "container-images" / "lock.yaml")["images"]
    name, _, digest = jobs()[".kit"]["image"].partition("@")
    assert known[name]["digest"] == digest
    assert {job["image"] for job in jobs().values() if "image" in job} == {jobs()[".kit"]["image"]}


def test_scripts_of_gitlab_jobs_quote_the_stack_name_variable():
    for name, job in jobs().items():
        for line in (*job.get("script", ()), *job.get("after_script", ())):
            assert "$STACK" not in re.sub(r'"(states/|preview-|rehearsal-)?\$STACK(\.json)?"', "", line), name


def test_only_gitlab_jobs_that_sign_in_receive_id_tokens():
    with_tokens = {name for name, job in jobs().items() if "id_tokens" in job or ".signed-in" in job.get("extends", ())}
    assert with_tokens == {".signed-in", ".preview", ".promote", ".drift"}
