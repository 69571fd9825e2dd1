"""What plans have reserved in a data set's budget: before a run begins, and given back where none did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from veilset.budget import ChargeTerms, DatasetBudget
from veilset.data.spec import Images, Source
from veilset.errors import ConfigError
from veilset.files import require_new_file, write_atomically
from veilset.methods.plan import Plan
from veilset.privacy.events import NOTHING, Composed


def budget_of(source: Source) -> DatasetBudget | None:
    """The account of a collection, where it has one; public benchmarks have none.

    Raises: ConfigError where data with a budget is declared a public benchmark.
    """
    path = Path(source.path) if source.path else None
    budget = DatasetBudget.find(path) if path is not None and path.exists() else None
    if budget is not None and source.benchmark:
        raise ConfigError("private data with a budget, or a public benchmark", "both", "Drop --benchmark.")
    return budget


def path_of(images: Images) -> Path | None:
    return Path(images.source.path) if images.source.path and images.source.benchmark is None else None


def reserve(plan: Plan, images_path: Path | None) -> Plan:
    """The plan with its cost charged to the data set's budget, where there is one."""
    budget = DatasetBudget.find(images_path) if images_path is not None else None
    if budget is None or plan.reservation is not None or plan.not_private:
        return plan
    name = budget.reserve(Composed((plan.planned, plan.reserve)), **charge_terms(plan))
    return replace(plan, reservation=name)


def write_plan(plan: Plan, images_path: Path | None, out: Path) -> Plan:
    """Writes a plan with its cost reserved, for one run; what cannot be written reserves nothing."""
    require_new_file(out)
    reserved = reserve(plan, images_path)
    try:
        write_atomically(out, reserved.dumps())
    except BaseException:  # an interrupt too: nobody has a plan to run
        if images_path is not None and reserved is not plan:
            free(reserved, DatasetBudget.find(images_path))
        raise
    return reserved


def free(plan: Plan, budget: DatasetBudget | None) -> None:
    """Gives a reservation back. Nothing can be released with it any more: no run may begin with it or be resumed.

    Raises: BudgetExceeded where a copy of its run was resumed, which keeps it.
    """
    if budget is not None and plan.reservation is not None:
        budget.finish(plan.reservation, None)
        budget.settle(plan.reservation, NOTHING)


def charge_terms(plan: Plan) -> ChargeTerms:
    facts = plan.facts
    return {
        "adjacency": facts.adjacency, "unit": facts.unit, "delta": plan.delta, "rows_per_user": facts.rows_per_user,
    }  # fmt: skip
