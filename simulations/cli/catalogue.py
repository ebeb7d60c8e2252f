"""The tables of ``hetfl list``."""

import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import tomli_w
from rich.table import Column, Table
from rich.text import Text

from hetfl_flwr.common.errors import ConfigError, HetflError
from hetfl_flwr.config import KEYS, RunConfig, load_toml, meaning, read_toml, to_toml

if TYPE_CHECKING:
    from hetfl_flwr.algorithms import Algorithm
    from hetfl_flwr.data import Reading
    from hetfl_flwr.server.strategy import FederatedStrategy

FLOWER_S = re.compile(
    r"^\[tool\.flwr\.app\.config\]\n.*?(?=^(?:#.*\n)*\[(?!tool\.flwr\.app\.config\.)|\Z)", re.MULTILINE | re.DOTALL
)
"""The run config in a pyproject.toml: its table and those within it, up to the next one, with its comment."""


def algorithms() -> Table:
    """List the algorithms by what leaves a client: paper, payload, what is needed of the clients, and the own keys.

    All of it is read off the server side: the citation in its module's docstring, the first line and the ``Wire``
    paragraph of the class's docstring, the attributes ``sends``, ``heterogeneous``, ``sharing`` and ``width``. A need
    that these do not tell stands in a ``Needs`` paragraph beside ``Wire``. A server side whose ``sends`` is none of the
    known words is shown as "something else", last.
    """
    from hetfl_flwr.algorithms import find, names
    from hetfl_flwr.server.strategy import Sends

    table = Table(
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
    words = get_args(Sends)
    for algorithm in sorted(map(find, names()), key=lambda algorithm: words.index(_sends(algorithm))):
        name = algorithm.name
        doc = inspect.getdoc(algorithm.strategy) or ""
        row = (
            _sends(algorithm),
            name,
            doc.partition("\n")[0],
            _paper(algorithm) or "-",
            "\n".join(_by_mode(algorithm, lambda strategy: wire(inspect.getdoc(strategy) or ""))),
            "\n".join(_by_mode(algorithm, _needs)) or "-",
            "\n".join(f"{name}.{key} = {value}" for key, value in algorithm.defaults.items()),
        )
        table.add_row(*(Text(cell) for cell in row))
    return table


def citation(doc: str) -> str:
    r"""Return a module docstring's citation, ``Authors, "Title", venue and year``, less the title; "" if none.

    Examples
    --------
    >>> citation('FedX, server side.\n\nRoe et al., "FedX: Learning\nApart", ICML 2022 (arXiv 2201.00001).')
    'Roe et al., ICML 2022 (arXiv 2201.00001)'
    """
    found = re.search(r'\n\n([^"]+),\s"[^"]+",\s([^"]*?\d{4}(?:\s\([^)]*\))?)', doc)
    return " ".join(", ".join(found.groups()).split()) if found else ""


def paragraph(label: str, doc: str) -> list[str]:
    r"""Return the items of a labelled paragraph of a class docstring, each on one line; none if it is not there.

    A line goes on with the item before it unless it begins with a capital letter, a backtick or ``down:`` or ``up:``.

    Examples
    --------
    >>> paragraph("Wire", "FedX.\n\nWire   down: a (),\n       b ()\n       up:   ``c``\n       Once: d\nState  none.")
    ['down: a (), b ()', 'up: c', 'Once: d']
    """
    found = re.search(rf"^{label:<7}(.*(?:\n {{7}}.*)*)", doc, re.MULTILINE)
    if found is None:
        return []
    items = re.split(r"\n\s+(?=[A-Z`]|(?:down|up):)", found[1])
    return [" ".join(item.replace("``", "").split()) for item in items]


def wire(doc: str) -> list[str]:
    """Return what the ``Wire`` paragraph says of a round: what goes down and up, or else its first item."""
    named = re.compile(r"`(?:strategies|clients)(?:\.\w+)*\.(\w+)\.\w+`")
    items = [named.sub(r"\1", item).rstrip(".") for item in paragraph("Wire", doc)]
    return [item for item in items if re.match("(down|up): ", item)] or items[:1]


def _by_mode(algorithm: "Algorithm", say: Callable[[type["FederatedStrategy"]], Iterable[str]]) -> list[str]:
    """Return what is said of a server side, then what is said of it in other modes and not in the default one."""
    lines = list(say(algorithm.strategy))
    _, *others = algorithm.modes.items() or [("", algorithm)]
    return lines + [f"mode={mode}: {line}" for mode, one in others for line in say(one.strategy) if line not in lines]


def _paper(algorithm: "Algorithm") -> str:
    """Return the citation in the docstring of the server side's module, or of the package that it lies in."""
    module = sys.modules[algorithm.strategy.__module__]
    package = sys.modules.get(module.__package__ or "", module)
    return citation(inspect.getdoc(module) or "") or citation(inspect.getdoc(package) or "")


def _sends(algorithm: "Algorithm") -> str:
    """Return what leaves a client, in a known word."""
    from hetfl_flwr.server.strategy import Sends

    *known, other = get_args(Sends)
    sends: str = getattr(algorithm.strategy, "sends", other)
    return sends if sends in known else other


def _needs(strategy_class: type["FederatedStrategy"]) -> Iterator[str]:
    """Say what an algorithm with its default settings asks of the clients, besides what every one does."""
    strategy = strategy_class()
    own = paragraph("Needs", inspect.getdoc(strategy_class) or "")
    if not (strategy.heterogeneous or own):
        yield "one model"
    if strategy.sharing is not None:
        yield "public samples with labels" if strategy.sharing.labelled else "public samples without labels"
    if strategy.width:
        yield f"one embedding width ({strategy.width})"
    yield from own


def datasets(data_dir: str) -> Table:
    """List the data sets of the catalogue; any hub id and any folder will do as well."""
    from hetfl_flwr.data import catalogue_rows

    table = Table(
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
    for row in catalogue_rows(data_dir):
        shape = " x ".join(str(length or "?") for length in row.shape)
        size = f"{row.megabytes:,.2f}" if row.megabytes else "?"
        counts = (str(row.classes), str(row.domains), f"{row.samples:,}", size)
        table.add_row(row.name, row.kind, shape, *counts, row.source, row.where, row.licence)
    return table


def models(dataset: str, reading: "Reading | None" = None) -> Table:
    """List the models, sized for a data set."""
    from hetfl_flwr.data import data_spec
    from hetfl_flwr.models import catalogue_rows

    spec = data_spec(dataset, reading)
    rows = [row._asdict() for row in catalogue_rows(spec)]
    return _table(
        f"models for {dataset}: inputs {spec.shape}, {spec.classes} classes (or package.module:function of your own)",
        rows,
    )


def recipes(folder: Path) -> Table:
    """List the recipes."""
    table = Table("name", "algorithm", "dataset", "rounds", title="recipes")
    for path in sorted(folder.glob("*.toml")):
        values = read_toml(path)
        table.add_row(path.stem, *(str(values.get(key, "")) for key in ("algorithm", "dataset", "rounds")))
    return table


def tables() -> Table:
    """List the tables and figures of the papers that can be reproduced."""
    from simulations.studies.reproduce.recipe import load, names

    table = Table(
        Column("name", no_wrap=True), "what", "runs", "needs", title="tables and figures: hetfl reproduce NAME"
    )
    for name in names():
        recipe = load(name)
        runs = f"{len(list(recipe.cells()))} x {recipe.seeds} seeds"
        table.add_row(name, recipe.title, runs, recipe.needs or "bundled data")
    return table


def keys() -> Table:
    """List the config keys that every algorithm shares."""
    table = Table("key", "default", "meaning", title="config keys: --set key=value, or flwr run -c 'key=value'")
    for key, field in KEYS.items():
        table.add_row(key, repr(field.default), meaning(key))
    return table


def keys_toml() -> str:
    """Return every config key with its default, and every algorithm's own, as Flower reads them in a pyproject.toml."""
    from hetfl_flwr.algorithms import find, names

    own = {f"{name}.{key}": value for name in names() for key, value in find(name).defaults.items()}
    tables = tomllib.loads(to_toml(RunConfig().to_flat() | own))
    return tomli_w.dumps({"tool": {"flwr": {"app": {"config": tables}}}})


def write_keys(path: Path) -> None:
    """Put what `keys_toml` returns into a pyproject.toml, in place of what it has of that; the rest stays as it is.

    Raises
    ------
    ConfigError
        The file is not TOML, or has no table of that name.
    """
    load_toml(path)
    text = path.read_text(encoding="utf-8")
    if not FLOWER_S.search(text):
        raise ConfigError(f"{path}: has no table [tool.flwr.app.config]")
    path.write_text(FLOWER_S.sub(lambda _: f"{keys_toml()}\n", text), encoding="utf-8")


def _table(title: str, rows: list[dict[str, object]]) -> Table:
    if not rows:
        raise HetflError(f"nothing to list: {title}")
    table = Table(*(name.replace("_", " ") for name in rows[0]), title=title)
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row.values()))
    return table
