"""What training has cost each client, as a table of the report."""

from hetfl_flwr.runs.figures.cost_totals import SHOWN, total_costs
from hetfl_flwr.runs.figures.tables import NOTHING
from hetfl_flwr.runs.schema import name_of
from hetfl_flwr.wire.naming import called
from simulations.reports.html.sheets import Cell, Sheet
from simulations.reports.runs import Run


def costs_sheet(run: Run) -> Sheet | None:
    """Return a row a client and one for all of them; None where no cost was measured."""
    total = total_costs(run.rounds)
    if not total:
        return None
    by_client = {client["partition"]: called(client["partition"], name_of(client)) for client in run.clients}
    each = {name: total_costs(run.rounds, client) for client, name in by_client.items()}
    rows = [
        [name, *(SHOWN[cost][1](costs[cost]) if cost in costs else NOTHING for cost in total)]
        for name, costs in {**each, "all": total}.items()
    ]
    return Sheet(
        caption="Costs of training",
        columns=[("client", False), *((SHOWN[cost][0], True) for cost in total)],
        rows=[list(map(Cell, row)) for row in rows],
        note="Of all rounds; of memory the largest.",
    )
