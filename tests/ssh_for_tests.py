"""An `ssh` that forwards nothing: it listens where `-L` says, and goes when its connections were planned to."""

import sys
from pathlib import Path

SSH = """#!{python} -IS
import pathlib, socket, sys
here = pathlib.Path(__file__).parent
starts = here / "starts"
starts.write_text((starts.read_text() if starts.exists() else "") + sys.argv[-1] + "\\n")
plan = (here / "plan").read_text().split()
(here / "plan").write_text(" ".join(plan[1:]))
if plan[:1] == ["refuse"]:
    sys.exit("Permission denied (publickey).")
port = int(sys.argv[sys.argv.index("-L") + 1].split(":")[0])
with socket.create_server(("127.0.0.1", port)) as server:
    while plan[:1] != ["leave"]:
        server.accept()[0].close()
    server.accept()
"""


def put_ssh(folder: Path, *runs: str) -> None:
    """Put an `ssh` into a folder. Its runs go as planned (`refuse`, `leave` after a connection), and then stay.

    `starts` has the last word of each run.
    """
    (folder / "ssh").write_text(SSH.format(python=sys.executable))
    (folder / "ssh").chmod(0o755)
    (folder / "plan").write_text(" ".join(runs))
