"""Git repositories that tests make."""

from pathlib import Path

from llmd_oke.pipelines.revisions import git

SOMEBODY = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")


def new_repository(project: Path) -> Path:
    """A new folder with a repository of a Pulumi project, without a commit."""
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: {name: python}\nstackConfigDir: stacks\n")
    (project / ".gitignore").write_text("reports/\n.rehearsal/\n")
    git(project, "init", "--quiet", "--initial-branch", "main")
    return project


def commit(project: Path) -> str:
    """Commit all files of a project; return the commit."""
    git(project, "add", "--all")
    git(project, *SOMEBODY, "commit", "--quiet", "--message", "a change")
    return git(project, "rev-parse", "HEAD")
