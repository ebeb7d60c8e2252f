"""The tables of ``hetfl list``, made of the rows of `simulations.cli.catalogue.facts`."""

from collections.abc import Callable, Sequence

from rich.table import Column, Table
from rich.text import Text

from hetfl_flwr.common.errors import HetflError
from hetfl_flwr.runs.figures.tables import NOTHING
from simulations.cli.catalogue.facts import Kind, Row


def table(kind: Kind, rows: Sequence[Row]) -> Table:
    """Return the table of one kind.

    Raises
    ------
    HetflError
        There is nothing to list.
    """
    if not rows:
        raise HetflError(f"nothing to list: {kind}")
    empty, cells = TABLES[kind](rows)
    for row in rows:
        empty.add_row(*(Text(NOTHING if cell is None else str(cell)) for cell in cells(row)))
    return empty


Cells = Callable[[Row], Sequence[object]]


def _algorithms(rows: Sequence[Row]) -> tuple[Table, Cells]:
    shown = Table(
        Column("leaves a client", min_width=10),
        Column("name", no_wrap=True),
        Column("what it does", ratio=4),
        Column("paper", ratio=3, min_width=10, overflow="fold"),
        Column("what crosses the wire", ratio=6),
        Column("needs", ratio=3, min_width=10, overflow="fold"),
        Column("options = default", no_wrap=True),
        title="algorithms (in full: the docstrings of FOLDER/NAME.py in strategies/ and clients/)",
        show_lines=True,
        expand=True,
    )
    return shown, lambda row: (
        *(row["leaves_a_client"], row["name"], row["what"], row["paper"]),
        *("\n".join(row["wire"]), "\n".join(row["needs"]) or NOTHING),
        "\n".join(f"{key} = {value}" for key, value in row["options"].items()),
    )


def _datasets(rows: Sequence[Row]) -> tuple[Table, Cells]:
    shown = Table(
        Column("name", no_wrap=True),
        "kind",
        Column("shape", no_wrap=True),
        *(Column(name, justify="right") for name in ("classes", "domains", "samples", "MB")),
        Column("source", overflow="fold"),
        "where",
        "licence",
        title="data sets (or a hub id with image-column, text-column or label-column, or a folder: ./photos)",
        caption="Samples of the whole data set: a local copy may hold fewer. MB: decoded, in memory. ?: images of many "
        "sizes, which image-size makes one. Folder only: not on the hub; a run of it says where to get it.",
    )
    return shown, lambda row: (
        *(row["name"], row["kind"], " x ".join(str(length or "?") for length in row["shape"])),
        *(row["classes"], row["domains"], f"{row['samples']:,}"),
        f"{row['megabytes']:,.2f}" if row["megabytes"] else "?",
        *(row["source"], row["where"], row["licence"]),
    )


def _models(rows: Sequence[Row]) -> tuple[Table, Cells]:
    one = rows[0]
    inputs = f"inputs {tuple(one['shape'])}, {one['classes']} classes"
    names = ("name", "summary", "parameters", "width", "problem")
    title = f"models for {one['dataset']}: {inputs} (or package.module:function of your own)"
    return Table(*names, title=title), lambda row: [row[name] for name in names]


def _recipes(rows: Sequence[Row]) -> tuple[Table, Cells]:
    return Table(*rows[0], title="recipes"), lambda row: list(row.values())


def _tables(rows: Sequence[Row]) -> tuple[Table, Cells]:
    title = "tables and figures: hetfl reproduce NAME"
    shown = Table(Column("name", no_wrap=True), "what", "runs", "needs", title=title)
    return shown, lambda row: (row["name"], row["what"], f"{row['runs']} x {row['seeds']} seeds", row["needs"])


def _keys(rows: Sequence[Row]) -> tuple[Table, Cells]:
    shown = Table(*rows[0], title="config keys: --set key=value, or flwr run -c 'key=value'")
    return shown, lambda row: (row["key"], repr(row["default"]), row["meaning"])


TABLES: dict[Kind, Callable[[Sequence[Row]], tuple[Table, Cells]]] = {
    Kind.ALGORITHMS: _algorithms,
    Kind.DATASETS: _datasets,
    Kind.MODELS: _models,
    Kind.RECIPES: _recipes,
    Kind.TABLES: _tables,
    Kind.KEYS: _keys,
}
"""By kind, an empty table for the rows, and the cells of one."""
