"""`python -m llmd_oke`: the command, where it is not on PATH."""

from llmd_oke.cli.main import main

if __name__ == "__main__":
    main()
