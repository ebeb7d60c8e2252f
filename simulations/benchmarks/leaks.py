"""What an audit reads from each payload, as it is and protected: ``python -m simulations.benchmarks.leaks --out DIR``.

Every algorithm that uploads anything, on the bundled digits: five clients of uneven classes, ten rounds of two epochs,
two clients attacked. The columns of a run, each with the accuracy that it costs:

- *at length*: twenty rounds, the attackers of ``hetfl audit`` as they are by default, FedKD with its own energies;
- *plain*, and *half precision*, these and all others with attackers who train less;
- *clipped*: ``clipping-norm`` alone, the median of the L2 norms of the plain run's uploads with seed 0;
- *epsilon 1000*, *100*, *10*: that norm, and noise by which the upload of ten rounds has this epsilon at delta 1e-5.

An attacker knows what is clipped and how much noise there is: the clients that it imitates clip and add noise as well.
FedKD sends whole matrices there (``energy-start`` and ``energy-end`` are 1), for noise on factors is noise on both.
Public samples are shared as they are. A run whose record is in ``DIR/leaks.jsonl`` is not made again; seeds go first,
then columns. The table is the last section of ``DIR/leaks.md``, and the text before it stays. Records of attacks that
have changed since are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from scipy.optimize import brentq

from hetfl_flwr.config import Value
from hetfl_flwr.wire.privacy import epsilon
from simulations.api import run
from simulations.benchmarks.records import chosen, keep, read, spread
from simulations.studies.audit.measures import Finding
from simulations.studies.audit.report import audited
from simulations.studies.audit.sent import upload_norm
from simulations.studies.audit.subject import subjects_of

HEADING = "## All figures"
"""Of the section with the table."""

CLIENTS, ATTACKED, ROUNDS, SEEDS, SHADOWS, MIMICS = 5, 2, 10, 5, 4, 12

LONG_ROUNDS, LONG_SHADOWS, LONG_MIMICS = 20, 8, 24

ATTACKS = 2
"""Counted up when an attack becomes another one: records of those before are left out, and their runs made again."""

MIXED, ALIKE = "mlp,lenet5", "lenet5"

ALGORITHMS: Mapping[str, Mapping[str, Value]] = {
    **{name: {"models": MIXED} for name in ("fedhe", "fd", "fedproto", "fedgh", "fedtgp", "chfl", "lgfedavg")},
    **{name: {"models": MIXED} for name in ("fedh2l", "fedmd", "dsfl", "fedhenn", "fml")},
    "fedkd": {"models": MIXED},
    "fedrep": {"models": ALIKE},
    "feddf": {"models": MIXED},
    "heterofl": {"models": "lenet5,lenet5@0.5"},
    "fedavg": {"models": ALIKE},
    "fedprox": {"models": ALIKE},
}
"""The rows: config keys of each."""

WHOLE: Mapping[str, Mapping[str, Value]] = {"fedkd": {"fedkd.energy-start": 1.0, "fedkd.energy-end": 1.0}}
"""More keys of a row in every column but the one at length."""

PLAIN, LONG = "plain", "at length"

COLUMNS: Mapping[str, float | None] = {
    PLAIN: None,
    **{f"epsilon {target}": float(target) for target in (100, 10, 1000)},
    "clipped": 0.0,
    "half precision": None,
    LONG: None,
}
"""The settings, in the order of the work, and the epsilon of each; 0: clipping without noise. None: no clipping."""

SHOWN = (LONG, PLAIN, "half precision", "clipped", "epsilon 1000", "epsilon 100", "epsilon 10")
"""The settings in the order of the table."""

MEASURES: Mapping[str, tuple[str, str]] = {
    "labels: sent": ("labels: as sent", "histogram"),
    "bias": ("labels: bias", "histogram"),
    "imitated": ("labels: imitated", "histogram"),
    "class present": ("labels:", "class present"),
    "membership: loss": ("membership: loss", "AUC"),
    "loss, TPR": ("membership: loss", "TPR"),
    "LiRA": ("membership: LiRA", "AUC"),
    "LiRA, TPR": ("membership: LiRA", "TPR"),
    "pictures: SSIM": ("pictures:", "SSIM"),
    "PSNR, dB": ("pictures:", "PSNR"),
}
"""The figures of a record: how the attack and how the measure begins. Of more than one the largest counts."""

CHANCE = ("bias", "imitated", "labels: sent", "pictures: SSIM", "PSNR, dB")
"""The figures of which the guess of an attacker who reads nothing is kept, too."""


def noise_for(target: float, uploads: int) -> float:
    """Return the noise multiplier with which so many uploads have an epsilon, above 0.

    Examples
    --------
    >>> round(epsilon(noise_for(10.0, 10), 10), 6)
    10.0
    """
    return float(brentq(lambda noise: log(epsilon(noise, uploads) / target), 1e-2, 1e3))  # type: ignore[no-untyped-call]


def settings(column: str, norm: float) -> dict[str, Value]:
    """Return the config keys of a setting."""
    target = COLUMNS[column]
    if target is None:
        return {"payload-precision": "half" if column == "half precision" else "full"}
    return {"clipping-norm": norm, "noise-multiplier": noise_for(target, ROUNDS) if target else 0.0}


def measured(row: str, column: str, seed: int, norm: float, **more: Value) -> dict[str, Any]:
    """Run one federation and attack it: the accuracy of all clients and the figures of `MEASURES`, and the norm."""
    long = column == LONG
    rounds, shadows, mimics = (LONG_ROUNDS, LONG_SHADOWS, LONG_MIMICS) if long else (ROUNDS, SHADOWS, MIMICS)
    keys: dict[str, Value] = {
        "clients": CLIENTS,
        "rounds": rounds,
        "seed": seed,
        "partition": "dirichlet:0.5",
        "local-batches": 0,
        "local-epochs": 2,
        "keep-uploads": True,
        "evaluate-every": rounds,
        **ALGORITHMS[row],
        **({} if long else WHOLE.get(row, {})),
        **settings(column, norm),
        **more,
    }
    with TemporaryDirectory() as place:
        result = run(row, out=Path(place) / "run", progress=False, settings=keys)
        found = audited(result.folder, shadows=shadows, clients=ATTACKED, mimics=mimics)
        record: dict[str, Any] = {"accuracy": result.summary["accuracy"], "epsilon": result.summary["epsilon"]}
        if column == PLAIN:
            record["norm"] = float(f"{median(map(upload_norm, subjects_of(result.folder))):.2g}")
    return record | {"figures": figures(found.findings), "chance": figures(found.findings, chance=True)}


def figures(findings: Iterable[Finding], *, chance: bool = False) -> dict[str, float]:
    """Return the figures of `MEASURES` to four decimals, or what an attacker gets who reads nothing."""
    known, kept = list(findings), {}
    for name in CHANCE if chance else MEASURES:
        attack, measure = MEASURES[name]
        fits = [one for one in known if one.attack.startswith(attack) and one.measure.startswith(measure)]
        values = [value for one in fits if (value := one.chance if chance else one.figure) is not None]
        if values:
            kept[name] = round(max(values), 4)
    return kept


def main(
    out: Annotated[Path, typer.Option(help="Folder of the records and the table.")],
    only: Annotated[list[str] | None, typer.Option(help="A row, once for each; all of them by default.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="A column, once for each; all by default.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N - 1.")] = SEEDS,
) -> None:
    """Run what has not been run yet, and write the table."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "leaks.jsonl"
    done = {key: one for key, one in read(path).items() if one.get("attacks") == ATTACKS}
    rows, columns = chosen(only, ALGORITHMS, "only"), chosen(column, COLUMNS, "column")
    clipped = any(COLUMNS[name] is not None for name in columns)
    plain = [(row, PLAIN, 0) for row in rows if clipped]  # whose norms the others take
    for row, name, seed in [*plain, *((row, name, seed) for seed, name, row in product(range(seeds), columns, rows))]:
        if (row, name, seed) not in done:
            norm = 0.0 if COLUMNS[name] is None else done[row, PLAIN, 0]["norm"]
            found = {"row": row, "column": name, "seed": seed, **measured(row, name, seed, norm)}
            keep(path, done, found | {"attacks": ATTACKS})
    text = "\n".join(table(done.values()))
    page = out / "leaks.md"
    before = page.read_text().partition(HEADING)[0] if page.exists() else "# What payloads give away\n\n"
    page.write_text(f"{before}{HEADING}\n\n{text}\n")
    print(text)


def table(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Write the table's lines: means and standard deviations over seeds, accuracy in %."""
    known = list(records)
    yield f"| | setting | seeds | accuracy % | {' | '.join(MEASURES)} |"
    yield "| --- " * (len(MEASURES) + 4) + "|"
    for row, column in product(ALGORITHMS, SHOWN):
        found = [one for one in known if (one["row"], one["column"]) == (row, column)]
        if found:
            cells = [spread([100 * one["accuracy"] for one in found], "{:.1f}".format)]
            for name in MEASURES:
                values = [one["figures"][name] for one in found if name in one["figures"]]
                cells.append(spread(values, ("{:.1f}" if name.startswith("PSNR") else "{:.2f}").format))
            yield f"| `{row}` | {column} | {len(found)} | " + " | ".join(cells) + " |"
    yield ""
    guesses = {name: [one["chance"][name] for one in known if name in one["chance"]] for name in CHANCE}
    yield "Who reads nothing: " + ", ".join(
        f"{name} {spread(found, '{:.2f}'.format)}" for name, found in guesses.items() if found
    )


if __name__ == "__main__":
    typer.run(main)
