"""More threads than cores are told in one line, in every engine, and what was asked for stands."""

import pytest
import torch
from flwr.supercore.logger import FLOWER_LOGGER

from hetfl_flwr.client_app import _client as surroundings
from hetfl_flwr.node import machine as threads
from simulations.engine.run import _check_threads


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads.check_threads.cache_clear()


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("workers", "clients", "own", "total"),
    [
        (2, 10, 4, 8),
        (1, 10, 3, 3),
        (2, 10, 1, 0),
        (9, 2, 1, 0),  # as many processes as clients
    ],
)
def test_hetfl_run_counts_the_threads_of_its_workers(make_config, capsys, workers, clients, own, total):
    _check_threads(make_config(clients=clients, threads=own), workers)
    said = capsys.readouterr().err
    assert said.count("\n") == (total > 0)
    assert (f"is {total}, more than the 2 cores here" in said) == (total > 0)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("share", "own", "said"), [("", 2, False), ("", 3, True), ("1", 2, True), ("1", 1, False), ("64", 3, True)]
)
def test_a_client_of_flower_counts_its_own(make_config, make_context, monkeypatch, caplog, share, own, said):
    """Of a machine's two cores Ray gives an actor a share; each of its clients tells, but only the first is written."""
    monkeypatch.setenv("OMP_NUM_THREADS", share)
    monkeypatch.setattr(FLOWER_LOGGER, "propagate", True)
    for client_id in (0, 1):
        surroundings(make_context(make_config(threads=own), client_id))
    lines = [record.message for record in caplog.records if "threads" in record.message]
    assert len(lines) == said
    assert all(line.startswith(f"threads = {own}, and this client's process has") for line in lines)
    assert torch.get_num_threads() == own
