"""Rows of ``hetfl list``, one dict each; ``python -m simulations.cli.facts`` writes them to ``recorded.json``.

Computing them imports torch and torchvision, which takes seconds, so the default lists are recorded, and a test checks
that the record is up to date.
"""

import inspect
import json
import re
import sys
import tomllib
from enum import StrEnum
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import tomli_w

from hetfl_flwr.config import KEYS, RunConfig, load_toml, meaning, read_toml, to_toml
from hetfl_flwr.errors import ConfigError
from simulations.cli.options import RECIPES

if TYPE_CHECKING:
    from hetfl_flwr.data import DatasetEntry
    from hetfl_flwr.methods import Algorithm
    from hetfl_flwr.strategy import KnowledgeStrategy

Row = dict[str, Any]

RECORD = Path(__file__).with_name("recorded.json")

USUAL_DATA = "digits"
"""Default data set for the sizes of models."""


class Kind(StrEnum):
    """What can be listed."""

    ALGORITHMS = "algorithms"
    DATASETS = "datasets"
    MODELS = "models"
    RECIPES = "recipes"
    TABLES = "tables"
    KEYS = "keys"


def facts(kind: Kind, config: RunConfig) -> list[Row]:
    """Return the rows of a kind for the data set and data folder of a config."""
    usual = config == RunConfig(dataset=USUAL_DATA)
    return recorded()[kind] if usual and kind in recorded() else live(kind, config)


@cache
def recorded() -> dict[str, list[Row]]:
    """Return the recorded rows by kind."""
    found: dict[str, list[Row]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def live(kind: Kind, config: RunConfig) -> list[Row]:
    """Compute the rows of a kind."""
    return {
        Kind.ALGORITHMS: algorithms,
        Kind.DATASETS: lambda: datasets(config.data_dir),
        Kind.MODELS: lambda: models(config),
        Kind.RECIPES: lambda: recipes(RECIPES),
        Kind.TABLES: tables,
        Kind.KEYS: keys,
    }[kind]()


def record() -> str:
    """Return the content of the record: all kinds that take long to compute."""
    config = RunConfig(dataset=USUAL_DATA)
    rows = {
        kind: ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in live(kind, config))
        for kind in (Kind.ALGORITHMS, Kind.DATASETS, Kind.MODELS, Kind.TABLES, Kind.KEYS)
    }
    return "{" + ",".join(f'\n"{kind}": [\n{lines}\n]' for kind, lines in rows.items()) + "\n}\n"


FLOWER_S = re.compile(
    r"^\[tool\.flwr\.app\.config\]\n.*?(?=^(?:#.*\n)*\[(?!tool\.flwr\.app\.config\.)|\Z)", re.MULTILINE | re.DOTALL
)
"""The run config in a pyproject.toml: its table with subtables, up to the next table and that table's comment."""


def algorithms() -> list[Row]:
    """List the algorithms by what leaves a client: paper, requirements on the clients, and the algorithm's own keys.

    Everything is taken from the server side: the citation in its module's docstring, the first line of the class's
    docstring, the attributes ``sends``, ``heterogeneous``, ``sharing`` and ``width``, and the ``Needs`` paragraph. A
    server side whose ``sends`` is not a known word is shown last, as "something else".
    """
    from hetfl_flwr.methods import find, names
    from hetfl_flwr.strategy import Sends

    words = get_args(Sends)
    return [
        {
            "leaves_a_client": _sends(algorithm),
            "name": algorithm.name,
            "what": _plain((inspect.getdoc(algorithm.strategy) or "").partition("\n")[0]),
            "paper": _paper(algorithm) or None,
            "needs": _needs(algorithm.strategy()),
            "options": algorithm.options,
        }
        for algorithm in sorted(map(find, names()), key=lambda algorithm: words.index(_sends(algorithm)))
    ]


def citation(doc: str) -> str:
    r"""Return a module docstring's citation, ``Authors, "Title", venue and year``, without the title; "" if none.

    Examples
    --------
    >>> citation('FedX, server side.\n\nRoe et al., "FedX: Learning\nApart", ICML 2022 (arXiv 2201.00001).')
    'Roe et al., ICML 2022 (arXiv 2201.00001)'
    """
    found = re.search(r'\n\n([^"]+),\s"[^"]+",\s([^"]*?\d{4}(?:\s\([^)]*\))?)', doc)
    return " ".join(", ".join(found.groups()).split()) if found else ""


def _paper(algorithm: "Algorithm") -> str:
    """Return the citation in the docstring of the server side's module, or of the package that it lies in."""
    module = sys.modules[algorithm.strategy.__module__]
    package = sys.modules.get(module.__package__ or "", module)
    return citation(inspect.getdoc(module) or "") or citation(inspect.getdoc(package) or "")


def _sends(algorithm: "Algorithm") -> str:
    """Return what leaves a client, as a known word of `Sends`."""
    from hetfl_flwr.strategy import Sends

    *known, other = get_args(Sends)
    sends: str = getattr(algorithm.strategy, "sends", other)
    return sends if sends in known else other


def _needs(strategy: "KnowledgeStrategy") -> list[str]:
    """Return what an algorithm requires of the clients by default, in addition to what every algorithm requires."""
    sharing = strategy.sharing
    own = re.search(r"^Needs  (.*(?:\n {7}.*)*)", inspect.getdoc(strategy) or "", re.MULTILINE)
    needs = {
        "one model": not (strategy.heterogeneous or own),
        "public samples with labels": sharing is not None and sharing.labelled,
        "public samples without labels": sharing is not None and not sharing.labelled,
        f"one embedding width ({strategy.width})": bool(strategy.width),
    }
    return [need for need, asked in needs.items() if asked] + ([_plain(" ".join(own[1].split()))] if own else [])


def datasets(data_dir: str) -> list[Row]:
    """List the data sets of the catalogue by name; any hub id and any folder can be used as well.

    ``samples`` is the number of samples that are divided among the clients of all domains with
    ``test-set = "client"``; ``megabytes`` is their decoded size, 0 if images differ in size (height and width 0).
    ``source`` is a hub id or a folder below ``data-dir``, and ``where`` is "bundled", "local", "hub" or "folder only".
    Raises `DataError` if `data_dir` is set and is not a folder.

    Examples
    --------
    >>> rows = {row["name"]: row for row in datasets("")}
    >>> rows["digits"]["samples"], rows["mnist"]["where"], rows["mnist"]["megabytes"]
    (1797, 'hub', 54.88)
    """
    from hetfl_flwr.data import CATALOGUE
    from hetfl_flwr.data.catalogue import ROTATED
    from hetfl_flwr.data.rotation import ANGLES, IMAGES_A_CLASS

    counts = {name: (entry, entry.domains, entry.train_rows + entry.test_rows) for name, entry in CATALOGUE.items()}
    for name, base in ROTATED.items():
        entry = CATALOGUE[base]
        counts[name] = entry, len(ANGLES), len(ANGLES) * IMAGES_A_CLASS * entry.spec.classes
    return [
        {
            "name": name,
            "kind": entry.spec.kind,
            "shape": list(entry.spec.shape),
            "classes": entry.spec.classes,
            "domains": domains,
            "samples": samples,
            "megabytes": samples * prod(entry.spec.shape) * (1 if entry.spec.kind == "image" else 4) / 1e6,
            "source": entry.place or entry.origin or "scikit-learn",
            "where": _where(entry, data_dir),
            "licence": entry.licence,
        }
        for name, (entry, domains, samples) in sorted(counts.items())
    ]


def _where(entry: "DatasetEntry", data_dir: str) -> str:
    from hetfl_flwr.data.folders import local_folder

    if entry.bundled:
        return "bundled"
    if data_dir and local_folder(entry.place, data_dir):
        return "local"
    return "folder only" if entry.origin else "hub"


def models(config: RunConfig) -> list[Row]:
    """List the models, sized for a data set."""
    from hetfl_flwr.data import data_spec
    from hetfl_flwr.models import catalogue_rows

    spec = data_spec(config.dataset, config.reading)
    data = {"dataset": config.dataset, "shape": list(spec.shape), "classes": spec.classes}
    return [data | row._asdict() for row in catalogue_rows(spec)]


def recipes(folder: Path) -> list[Row]:
    """List the recipes."""
    read = {path.stem: read_toml(path) for path in sorted(folder.glob("*.toml"))}
    keys = ("algorithm", "dataset", "rounds")
    return [{"name": name} | {key: values.get(key) for key in keys} for name, values in read.items()]


def tables() -> list[Row]:
    """List the tables and figures of the papers that can be reproduced."""
    from simulations.studies.reproduce.recipe import load, names

    return [
        {
            "name": name,
            "what": recipe.title,
            "runs": sum(cell.seeds for cell in recipe.cells()),
            "seeds": recipe.seeds,
            "needs": recipe.needs or "bundled data",
        }
        for name in names()
        for recipe in [load(name)]
    ]


def keys() -> list[Row]:
    """List the config keys: those of all algorithms, then those of each one."""
    from hetfl_flwr.methods import find, names

    shared = [{"key": key, "default": field.default, "meaning": meaning(key)} for key, field in KEYS.items()]
    own = [
        {"key": key, "default": value, "meaning": own_meaning(find(name), key.rpartition(".")[2])}
        for name in names()
        for key, value in find(name).options.items()
    ]
    return shared + own


def own_meaning(algorithm: "Algorithm", key: str) -> str:
    """Return what the classes of an algorithm say about one of their own keys, in one line; "" if they say nothing.

    It is the first entry of that name in a ``Parameters`` section that is not a reference to another class.
    """
    if key == "mode" and algorithm.modes:
        said = {mode: inspect.cleandoc(one.client.__doc__ or "") for mode, one in algorithm.modes.items()}
        return " ".join(f'"{mode}": {doc.partition(chr(10))[0]}' for mode, doc in said.items())
    entry = re.compile(rf"^(?:\w+, )*{key.replace('-', '_')}(?:, \w+)* : .*\n((?: {{4}}.*\n|\n)+)", re.MULTILINE)
    docs = [inspect.cleandoc(vars(one).get("__doc__") or "") for side in algorithm.sides for one in side.__mro__]
    texts = (" ".join(found[1].split()) for doc in docs if (found := entry.search(f"{doc}\n")))
    return _plain(next((text for text in texts if not text.startswith("As in ")), ""))


def _plain(text: str) -> str:
    """Return docstring text without literal quotes."""
    return text.replace("``", "")


def keys_toml() -> str:
    """Return all config keys and the algorithms' own, with their defaults, as Flower reads them in a pyproject.toml."""
    from hetfl_flwr.methods import find, names

    own = {key: value for name in names() for key, value in find(name).options.items()}
    tables = tomllib.loads(to_toml(RunConfig().to_flat() | own))
    return tomli_w.dumps({"tool": {"flwr": {"app": {"config": tables}}}})


def write_keys(path: Path) -> None:
    """Replace the config table of a pyproject.toml by what `keys_toml` returns; the rest of the file does not change.

    Raises `ConfigError` if the file is not TOML, or has no table of that name.
    """
    load_toml(path)
    text = path.read_text(encoding="utf-8")
    if not FLOWER_S.search(text):
        raise ConfigError(f"{path}: has no table [tool.flwr.app.config]")
    path.write_text(FLOWER_S.sub(lambda _: f"{keys_toml()}\n", text), encoding="utf-8")


if __name__ == "__main__":
    RECORD.write_text(record(), encoding="utf-8")
