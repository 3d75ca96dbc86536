"""Entry point of the component package: Pulumi runs `python components <engine address>`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "packages"))  # where they are not installed

from llmd_oke.package import serve

if __name__ == "__main__":
    serve()
