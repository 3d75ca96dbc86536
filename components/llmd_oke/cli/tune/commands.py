"""The commands of `llmd-oke tune`, in the order of their use."""

import typer

from llmd_oke.cli.tune import apply, fidelity, findings, fit, import_rows, match, plan, plot, rank, run, verify, watch

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)

app.command("plan")(plan.plan)
app.command("run")(run.run)
app.command("import")(import_rows.import_rows)
app.command("fit")(fit.fit)
app.command("match")(match.match)
app.command("rank")(rank.rank)
app.command("plot")(plot.plot)
app.command("apply")(apply.apply)
app.command("verify")(verify.verify)
app.command("watch")(watch.watch)
app.command("findings")(findings.findings)
app.command("fidelity")(fidelity.fidelity)
