"""The tables of the privacy page are those of the records of attacks, and of the accountant."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from hetfl_flwr.wire.privacy import epsilon

ROOT = Path(__file__).parents[3]

ATTACKED = [json.loads(line) for line in (ROOT / "simulations" / "results" / "leaks.jsonl").read_text().splitlines()]

BARE = ("plain", "at length")
"""Columns without protection: after ten and after twenty rounds."""


def rows():
    lines = (ROOT / "docs" / "privacy.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\|.*\d \|$", line)]


def mean(method, column, figure):
    found = [one["figures"].get(figure) for one in ATTACKED if (one["row"], one["column"]) == (method, column)]
    return fmean(found) if found and None not in found else 1.0


def span(values):
    low, high = (f"{one:.2f}" for one in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


@pytest.mark.parametrize(
    ("payload", "labels", "membership"), [row for row in rows() if "`" in row[0] or "embeddings" in row[0]]
)
def test_what_attacks_find_is_the_mean_over_seeds_of_the_best_attack(payload, labels, membership):
    methods = re.findall(r"`(\w+)`", payload) + ["fedhenn"] * ("embeddings" in payload)
    best = [
        min(mean(one, column, attack) for column in BARE for attack in ("labels: sent", "bias", "imitated"))
        for one in methods
    ]
    assert labels.rpartition("; ")[2].partition(" with its body")[0] == span(best)
    assert membership == span([mean(one, "at length", "LiRA") for one in methods])


@pytest.mark.parametrize(("noise", "after_20", "after_50"), [row for row in rows() if row[0].isdecimal()])
def test_epsilons_are_the_accountants(noise, after_20, after_50):
    found = [epsilon(float(noise), rounds) for rounds in (20, 50)]
    assert [f"{one:.0f}" if one >= 10 else f"{one:.1f}" for one in found] == [after_20, after_50]
