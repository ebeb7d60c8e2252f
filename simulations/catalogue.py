"""The tables of ``hetfl list``."""

import inspect
from pathlib import Path

from rich.table import Table

from hetfl_flwr.config import RunConfig, read_toml
from hetfl_flwr.errors import HetflError


def algorithms() -> Table:
    """List the algorithms, whether they take unlike models, and their own keys."""
    from hetfl_flwr.algorithms import find, names

    table = Table("name", "what it does", "unlike models", "own keys = default", title="algorithms")
    for name in names():
        algorithm = find(name)
        summary = (inspect.getdoc(algorithm.strategy) or "").splitlines()[0]
        keys = "\n".join(f"{name}.{key} = {value}" for key, value in algorithm.defaults.items())
        table.add_row(name, summary, "yes" if algorithm.strategy.unlike_models else "no", keys)
    return table


def datasets(data_dir: str) -> Table:
    """List the data sets of the catalogue; any hub id will do as well."""
    from hetfl_flwr.data import catalogue_rows

    return _table(
        "data sets (or any hub id, with image-column and label-column)",
        [row._asdict() for row in catalogue_rows(data_dir)],
    )


def models(dataset: str, data_dir: str) -> Table:
    """List the models, sized for a data set."""
    from hetfl_flwr.data import data_spec
    from hetfl_flwr.models import catalogue_rows

    spec = data_spec(dataset, data_dir)
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


def keys() -> Table:
    """List the config keys that every algorithm shares."""
    table = Table("key", "default", "meaning", title="config keys: --set key=value, or flwr run -c 'key=value'")
    for field in RunConfig.model_fields.values():
        if not field.exclude:
            table.add_row(field.alias, repr(field.default), field.description)
    return table


def _table(title: str, rows: list[dict[str, object]]) -> Table:
    if not rows:
        raise HetflError(f"nothing to list: {title}")
    table = Table(*(name.replace("_", " ") for name in rows[0]), title=title)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    return table
