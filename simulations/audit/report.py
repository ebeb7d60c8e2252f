"""The audit of a run: all attacks that fit, as tables, as ``audit.json`` and as pictures in the run folder."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hetfl_flwr.common.files import as_json, replace_file, writing
from hetfl_flwr.common.notices import option
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.node.machine import find_device
from hetfl_flwr.seeding import seeded
from hetfl_flwr.text import some
from hetfl_flwr.wire.privacy import DELTA
from simulations.audit.accounting import Guarantee, guarantees
from simulations.audit.labels import IMITATIONS, UPLOAD_READERS, HistogramEstimate, by_imitation, estimates
from simulations.audit.measures import AttackResult, Finding, NotFittedError, Scores
from simulations.audit.membership import by_likelihood
from simulations.audit.pictures import by_gradient, by_means, fits_gradient, fits_means
from simulations.audit.readings import PayloadReading, readings_of
from simulations.audit.subject import is_deployment, subjects_of, uploads_of
from simulations.reports.layout import table_of
from simulations.reports.runs import load_run

if TYPE_CHECKING:
    from rich.table import Table

FOLDER, JSON_FILE = "audit", "audit.json"
"""Folder and file that an audit writes in a run folder."""

MAX_CLASSES = 5
"""Maximum number of a client's classes in a table."""


class Attack(NamedTuple):
    """An attack; `fits` returns why it does not fit a payload, or an empty text."""

    name: str
    run: Callable[[Sequence[PayloadReading]], AttackResult]
    fits: Callable[[PayloadReading], str] = lambda reading: ""
    needs_data: bool = True


def attacks(shadows: int, mimics: int) -> list[Attack]:
    """Return all attacks, in the order of the table; `audited` describes the parameters."""
    return [
        Attack("membership: LiRA, offline (Carlini et al. 2022)", partial(by_likelihood, shadows=shadows)),
        *(Attack(f"labels: {name}{one.authors}", one.run, one.fits, False) for name, one in UPLOAD_READERS.items()),
        Attack("labels: imitated clients", partial(by_imitation, imitations=mimics)),
        Attack("pictures: class means (He et al. 2019)", by_means, fits_means),
        Attack("pictures: gradient (Geiping et al. 2020)", by_gradient, fits_gradient),
    ]


@dataclass(frozen=True)
class Audit:
    """The results of the attacks on a run.

    Parameters
    ----------
    findings : list of Finding
        The figures.
    skipped : mapping of str to str
        Attacks that do not fit, or cannot be fitted to some clients' uploads, and why.
    pictures : list of Path
        Files with originals above and reconstructions below.
    guarantees : list of Guarantee
        What the noise on uploads guarantees against any attack; empty without noise.
    unknown : str
        Which guarantee is unknown, and why, or an empty text.
    estimates : list of HistogramEstimate
        What is inferred without the clients' data, and so without ground truth.
    """

    findings: list[Finding]
    skipped: Mapping[str, str]
    pictures: list[Path]
    guarantees: list[Guarantee]
    unknown: str
    estimates: list[HistogramEstimate] = field(default_factory=list)


def audited(
    folder: Path,
    *,
    device: str = "cpu",
    shadows: int = 8,
    clients: int = 0,
    mimics: int = IMITATIONS,
    places: Mapping[int, Path] | None = None,
) -> Audit:
    """Run all attacks that fit a run's payload, and write the results to its folder.

    The arguments are those of `simulations.api.audit`; `places` are its ``nodes``. In addition, `mimics` is the number
    of clients that are imitated to learn how uploads reflect class histograms, 1 or more.

    Raises `ConfigError` if the device is not available, or no attack can read the uploads, or none can without the
    clients' data, and `RunFolderError` if the run, its uploads or its data are missing, or the folder cannot be
    written.
    """
    find_device(RunConfig.from_flat({"device": device}).device)
    if shadows < 2:
        raise ConfigError(f"shadows = {shadows}: LiRA needs the spread of 2 models or more")
    if clients < 0:
        raise ConfigError(f"clients = {clients}: expected the number of clients to attack, 0 for all")
    noised, unknown = guarantees(load_run(folder))  # raises if there is no run
    naming = option("--node 0=STATE_DIR --node 1=STATE_DIR", "nodes={0: STATE_DIR, 1: STATE_DIR}")
    found, pictures = list[Finding](), dict[str, tuple[Scores, Scores]]()
    if is_deployment(folder) and not places:
        said = estimates(uploads_of(folder))
        if not said:
            raise ConfigError(
                f"{folder} is a deployment whose uploads alone do not show classes: other attacks need the clients' "
                f"data, so name the folders of their nodes ({naming})"
            )
        why = f"needs the clients' data ({naming})"
        skipped = {attack.name: why for attack in attacks(shadows, mimics) if attack.needs_data}
        shares = [one._asdict() | {"shares": [round(float(part), 4) for part in one.shares]} for one in said]
        more: dict[str, object] = {"estimates": shares}
    else:
        said, skipped, more = [], {}, {}
        readings = readings_of(subjects_of(folder, device, clients, places))
        with seeded(readings[0].subject.config.seed, "audit"):  # dropout draws from a global generator
            for attack in attacks(shadows, mimics):
                fitting = [reading for reading in readings if not attack.fits(reading)]
                its, why = _ran(attack, fitting) if fitting else (None, attack.fits(readings[0]))
                if its is not None:
                    found += [Finding(attack.name, its.reads, its.knows, *figures) for figures in its.figures]
                    pictures |= {attack.name: its.pictures} if its.pictures else {}
                skipped |= {attack.name: why} if why else {}
    written = {"findings": [*map(_as_row, found)], "skipped": skipped, "guarantees": [*map(_as_row, noised)]} | more
    return Audit(found, skipped, _written(folder / FOLDER, written, pictures), noised, unknown, said)


def _ran(attack: Attack, readings: Sequence[PayloadReading]) -> tuple[AttackResult | None, str]:
    """Return what an attack finds for the clients it can be fitted to, and why it cannot be fitted to any others."""
    try:
        return attack.run(readings), ""
    except NotFittedError as error:
        why = str(error)
    fitted = [one for one in readings if len(readings) > 1 and not _ran(attack, [one])[1]]
    if len(fitted) == len(readings):  # each alone, but not together
        fitted = []
    others = [one.subject.client_id for one in readings if one not in fitted]
    found = _ran(attack, fitted)[0] if fitted else None
    return found, f"cannot be fitted to what client {some(others)} has sent: {why}"


def tables(audit: Audit, run: str, names: Sequence[str] | None) -> "Iterator[Table]":
    """Yield the figures, the estimates without data and the guarantees of a run as tables; `names` are of classes."""

    def classes(one: HistogramEstimate) -> str:
        order = np.argsort(-one.shares, kind="stable")[:MAX_CLASSES]
        return ", ".join(f"{names[c] if names else c}: {one.shares[c]:.0%}" for c in order if one.shares[c] > 0)

    if audit.findings:
        yield table_of(
            f"Attacks on {run}",
            {
                "attack": attrgetter("attack"),
                "reads": attrgetter("reads"),
                "measure": attrgetter("measure"),
                "figure": lambda one: shown(one.figure),
                "other client": lambda one: shown(one.without),
                "chance": lambda one: shown(one.chance),
                "best": lambda one: shown(one.best),
            },
            audit.findings,
            words={"attack", "reads", "measure"},
            notes=[
                "figure: over clients. other client: the same with another client's upload. chance: an attacker who "
                "reads nothing; for pictures the mean of its samples, for labels the better of their "
                "histogram and even shares. best: for labels, the truth. An AUC, TPR or PSNR above chance, or an "
                "error below it, is a leak. -: not measured, or undefined, for example because clients have all "
                "classes.",
                *dict.fromkeys(f"{one.attack}: assumed to be known: {one.knows}." for one in audit.findings),
            ],
        )
    if audit.estimates:
        yield table_of(
            f"What {run} says by itself",
            {"client": lambda one: str(one.client), "labels": attrgetter("attack"), "classes, most first": classes},
            audit.estimates,
            words={"labels", "classes, most first"},
            notes=["Nothing is measured: the clients' data are missing. A presence flag counts as one sample."],
        )
    if audit.guarantees:
        yield table_of(
            f"what the noise on {run} guarantees",
            {
                "against": attrgetter("holds"),
                "uploads": lambda one: str(one.uploads) if one.rate == 1 else f"in {one.uploads} rounds",
                "sampled": lambda one: f"{one.rate:.0%}",
                "epsilon": lambda one: f"{one.epsilon:.3g}",
            },
            audit.guarantees,
            words={"against"},
            notes=[f"epsilon: at delta = {DELTA:g}, if a client's data are replaced by any others; for all attacks."],
        )


def shown(number: float | None) -> str:
    """Format a figure for tables.

    Examples
    --------
    >>> shown(0.12345), shown(None)
    ('0.123', '-')
    """
    return "-" if number is None else f"{number:.3f}" if abs(number) < 10 else f"{number:.1f}"


def _as_row(one: Finding | Guarantee) -> dict[str, object]:
    return {name: as_json(value) for name, value in asdict(one).items()}


def _written(folder: Path, said: Mapping[str, object], pictures: Mapping[str, tuple[Scores, Scores]]) -> list[Path]:
    with writing(folder):
        replace_file(folder / JSON_FILE, (json.dumps(said, indent=1, allow_nan=False) + "\n").encode())
        return [_drawn(folder, attack, *two) for attack, two in pictures.items()]


def _drawn(folder: Path, attack: str, originals: Scores, found: Scores) -> Path:
    """Draw originals above reconstructions into a file named after the attack."""
    from matplotlib.figure import Figure

    name = attack.partition(" (")[0].replace(": ", "-").replace(" ", "-").replace(",", "")
    path, columns = folder / f"{name}.png", len(originals)
    figure = Figure(figsize=(max(columns + 0.4, 5), 2.6))  # room for the title
    axes = figure.subplots(2, columns, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for row, label, images in zip(axes, ("original", "found"), (originals, found), strict=True):
        row[0].set_ylabel(label)
        for one, image in zip(row, images, strict=True):
            shape = image[0] if len(image) == 1 else image.transpose(1, 2, 0)  # channels last
            one.imshow(shape, cmap="gray", vmin=0, vmax=1)
    figure.suptitle(attack)
    figure.savefig(path, dpi=100)
    return path
