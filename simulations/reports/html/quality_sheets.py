"""What the report says of clients beyond accuracy."""

from collections.abc import Sequence

from hetfl_flwr.runs.figures.tables import NOTHING, percent
from hetfl_flwr.runs.schema import ClientRecord, name_of
from hetfl_flwr.wire.naming import called
from simulations.reports.html import svg
from simulations.reports.html.sheets import Cell, Sheet

HEADINGS = {"balanced": "balanced_accuracy", "F1": "macro_f1", "AUC": "auc", "majority": "majority"}
"""How the table of clients calls the figures of `hetfl_flwr.runs.schema.Quality`."""

MOST_CELLS = 1200
"""Recalls up to which they are a table of clients by classes; beyond, each client has its lowest ones."""

LOWEST = 5


def quality(key: str, client: ClientRecord) -> str:
    """Return one of the figures of a client."""
    value = client.get(key)
    return svg.percent(value if isinstance(value, float) else None)


def recalls(clients: Sequence[ClientRecord]) -> Sheet | None:
    """Return the recall of each class, a row a client, or where that is too many cells the lowest; None without any."""
    known = [client for client in clients if client.get("recall")]
    if not known:
        return None
    classes = _classes(known)
    caption = "Recall of each class, in %"
    marks = (
        "The part of a client's test samples of a class that its model finds, after the last round. never: the client "
        "predicts the class for no test sample. "
    )
    if len(known) * len(classes) > MOST_CELLS:
        rows = [[_client(client), Cell(_lowest(client))] for client in known]
        return Sheet(caption, [("client", True), (f"the {LOWEST} lowest", False)], rows, marks.strip())
    rows = [[_client(client), *(_cell(client, name) for name in classes)] for client in known]
    columns = [("client", True), *((name, True) for name in classes)]
    return Sheet(caption, columns, rows, f"{marks}{NOTHING}: the client has no test sample of the class.")


def _client(client: ClientRecord) -> Cell:
    return Cell(called(client["partition"], name_of(client)))


def _classes(clients: Sequence[ClientRecord]) -> list[str]:
    """Return the names of all classes, in the order of the client that has most of them."""
    own = sorted(((client.get("recall") or {}).keys() for client in clients), key=len, reverse=True)
    names = list(dict.fromkeys(name for keys in own for name in keys))
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _cell(client: ClientRecord, name: str) -> Cell:
    value = (client.get("recall") or {}).get(name)
    if value is None:
        return Cell(NOTHING)
    never = name in (client.get("unpredicted") or ())
    return Cell(f"{percent(value)} never" if never else percent(value), value)


def _lowest(client: ClientRecord) -> str:
    lowest = sorted((client.get("recall") or {}).items(), key=lambda item: item[1])[:LOWEST]
    return ", ".join(f"{name}: {_cell(client, name).text}" for name, _ in lowest)
