"""`veilset budget`: one budget per data set, over all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilset.budget import DatasetBudget
from veilset.cli.options import Delta, Neighbours, UnitOf
from veilset.console import Show, command, result
from veilset.errors import ConfigError
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import shown

app = typer.Typer(help="One budget per data set, over all runs.", no_args_is_help=True)
DataSet = Annotated[Path, typer.Argument(help="The data set: a folder, or an .npz file.")]


@app.command("init")
def init(
    source: DataSet,
    epsilon: Annotated[float, typer.Option(help="Epsilon over all runs on this data together.")],
    delta: Delta = 1e-5,
    adjacency: Neighbours = "add-remove",
    unit: UnitOf = "record",
) -> None:
    """Give a data set a budget; its id is kept beside the data, its account in $VEILSET_HOME (~/.veilset)."""
    DatasetBudget.create(source, epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency), unit=Unit(unit))
    show(source)


@app.command("show")
def show(source: DataSet) -> None:
    """Show what is charged and what is left."""
    budget = DatasetBudget.find(source)
    if budget is None:
        raise ConfigError(
            f"a budget for {source}", "none", f"Make one: {command('budget', 'init', source, '--epsilon', 3)}"
        )
    status, left = budget.status(), budget.epsilon_left()
    Show(quiet=False).say(
        f"epsilon {shown(status.epsilon_charged)} of {status.epsilon:.4g} charged at delta {status.delta:g}, "
        f"{status.adjacency} of one {status.unit}; runs settled: {status.runs_settled}, "
        f"unsettled: {status.runs_unsettled}; one further run may have about epsilon {left:.3g}"
    )
    if status.runs_unproven:
        Show(quiet=False).say(f"beside them, runs of no proven epsilon, which nothing counts: {status.runs_unproven}")
    result({**status.__dict__, "epsilon_left": left})
