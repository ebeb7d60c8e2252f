"""What clients were sent and have uploaded: all of it, once, whatever stops the run."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.runs.uploads import kept_files, kept_uploads

KEPT = {"keep_uploads": True, "models": "mlp", "rounds": 4, "checkpoint_every": 2}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for _, path in kept_files(folder)}


@pytest.fixture
def whole(lab):
    """A run of four rounds and two clients that was never stopped."""
    return lab.run(lab.config(**KEPT))


def test_each_client_and_round_is_there_once_with_what_it_was_sent(whole):
    kept = list(kept_uploads(whole))
    assert [(one.round, one.client_id) for one in kept] == [(n, k) for n in (1, 2, 3, 4) for k in (0, 1)]
    assert {tuple(one.upload) for one in kept} == {("logits", "counts")}
    assert not kept[0].download["known"].any()  # nobody has sent anything before round 1
    means = [one.upload["logits"] for one in kept[:2]]
    has = [one.upload["counts"] > 0 for one in kept[:2]]
    both = has[0] & has[1]
    assert np.allclose(kept[2].download["logits"][both], np.mean(means, axis=0)[both], atol=1e-6)


def test_clients_that_are_sent_different_things_have_each_its_own(lab):
    """Each is sent what the other one has uploaded, as it is left out of its own mean."""
    folder = lab.run(lab.config(**KEPT | {"rounds": 2, "algorithm": "fd"}))
    first, second = (list(kept_uploads(folder))[n : n + 2] for n in (0, 2))
    for one, other in ((0, 1), (1, 0)):
        has = first[other].upload["classes"]
        assert np.flatnonzero(second[one].download["known"]).tolist() == has.tolist()
        assert np.allclose(second[one].download["averages"][has], first[other].upload["averages"], atol=1e-6)


def test_a_run_that_goes_on_ends_with_the_same_files(lab, whole, tmp_path):
    before = files(whole)
    shutil.rmtree(whole)
    lab.run(lab.config(**KEPT | {"rounds": 2}))
    (whole / "uploads" / "round-3.safetensors").write_bytes(b"of a round that no checkpoint knows")
    lab.run(lab.config(**KEPT, resume=True))
    assert files(whole) == before


def test_a_file_of_a_round_that_is_not_reached_again_is_removed(lab, whole):
    """The rounds after the last checkpoint are played again, or, of a shorter run, never."""
    shutil.rmtree(whole / "checkpoint" / "round-4")
    lab.run(lab.config(**KEPT | {"rounds": 3}, resume=True))
    assert [number for number, _ in kept_files(whole)] == [1, 2, 3]


@pytest.mark.parametrize("precision", ["full", "half"])
def test_weights_are_kept_as_they_were_decoded(lab, precision):
    folder = lab.run(lab.config(**KEPT | {"rounds": 1}, algorithm="fedavg", payload_precision=precision))
    first, second = kept_uploads(folder)
    assert {array.dtype for array in first.upload.values()} == {np.dtype("float32")}
    assert all(np.array_equal(first.download[name], second.download[name]) for name in first.download)
    assert any(not np.array_equal(first.upload[name], first.download[name]) for name in first.upload)


@pytest.mark.parametrize("algorithm", ["local", "agg"])
def test_an_algorithm_that_uploads_nothing_is_refused_before_anything_is_written(lab, tmp_path, algorithm):
    with pytest.raises(ConfigError, match="keep-uploads = true"):
        lab.run(lab.config(**KEPT, algorithm=algorithm))
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


@pytest.mark.parametrize("another", [False, True])
def test_a_file_that_is_damaged_or_of_another_round_is_named(whole, another):
    path = whole / "uploads" / "round-2.safetensors"
    path.write_bytes(path.with_stem("round-1").read_bytes() if another else path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(RunFolderError, match=r"round-2.safetensors: damaged"):
        list(kept_uploads(whole))


def test_a_file_of_another_run_is_named(lab, whole, tmp_path):
    """Of equal or other models: what an audit would read from it is not of this run."""
    kept = (whole / "uploads" / "round-1.safetensors").read_bytes()
    shutil.rmtree(whole)
    again = lab.run(lab.config(**KEPT), run_id=8)
    (again / "uploads" / "round-1.safetensors").write_bytes(kept)
    with pytest.raises(RunFolderError, match=r"round-1.safetensors is of another run than the checkpoint of"):
        list(kept_uploads(again))
