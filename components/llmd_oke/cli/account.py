"""What an operation of the Pulumi CLI did to a stack, as one JSON object."""

import time
from typing import Any

from llmd_oke.cli.json_output import described
from llmd_oke.cli.smoke import Benchmarked
from llmd_oke.errors import KitError
from llmd_oke.operations.pulumi_cli import PulumiCli


class Account:
    """Begins before the operation, so that changes and duration are its own.

    Raises:
        KitError: nobody could be asked and --yes is not given, or the stack's history can't be read.
    """

    def __init__(self, pulumi: PulumiCli, *, yes: bool) -> None:
        if not yes:
            raise KitError("With --json nobody can be asked.", "Add --yes.")
        self._pulumi = pulumi
        self._before = pulumi.last_record()
        self._began_s = time.monotonic()

    def document(self, benchmarked: Benchmarked, error: KitError | None) -> dict[str, Any]:
        """The operation as plain data: how many resources were created, updated and so on; the stack's outputs (secret
        ones masked); the summary of each model's benchmark, and why there is none where it could not be run or read;
        the passports' files; why it failed, if it did.

        Raises:
            KitError: the stack's history or outputs can't be read.
        """
        duration_s = time.monotonic() - self._began_s
        last = self._pulumi.last_record()
        return {
            "stack": self._pulumi.stack,
            "ok": error is None,
            "changes": dict(last.changes) if last and last != self._before else {},
            "outputs": self._pulumi.outputs(),
            "duration_s": round(duration_s, 1),
            "smoke": [outcome.summary for outcome in benchmarked.outcomes],
            "passports": [str(path) for path in benchmarked.passports],
            **({"smoke_error": described(benchmarked.error)} if benchmarked.error else {}),
            **(described(error) if error else {}),
        }


def ended(operation: str, status: int, remedy: str = "Standard error says why.") -> KitError | None:
    """What to say of the Pulumi CLI's exit code, None where all went well."""
    if not status:
        return None
    return KitError(f"`pulumi {operation}` ended with exit code {status}.", remedy)
