"""The commands of `llmd-oke tune`, in the order of their use."""

import typer

from llmd_oke.cli.tune import apply, findings, fit, import_rows, match, plan, plot, rank, run, verify

app = typer.Typer(add_completion=False)

app.command("plan")(plan.plan)
app.command("run")(run.run)
app.command("import")(import_rows.import_rows)
app.command("fit")(fit.fit)
app.command("match")(match.match)
app.command("rank")(rank.rank)
app.command("plot")(plot.plot)
app.command("apply")(apply.apply)
app.command("verify")(verify.verify)
app.command("findings")(findings.findings)
