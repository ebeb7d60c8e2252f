"""A run audited: what each payload gives away, controls on both ends, and bad input."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hetfl_flwr.common.blobs import pack, read_blob
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.learning.training import take_statistics
from hetfl_flwr.models import SplitModel
from hetfl_flwr.runs.uploads import UPLOADS
from hetfl_flwr.seeding import generator
from hetfl_flwr.wire.weights import loaded
from simulations.audit import imitation, pictures, readings
from simulations.audit.accounting import guarantees
from simulations.audit.imitation import as_sent, pooled_upload, read_together
from simulations.audit.labels import UPLOAD_READERS, by_imitation
from simulations.audit.membership import by_likelihood
from simulations.audit.pictures import by_gradient, by_means, fits_gradient
from simulations.audit.readings import Head, readings_of
from simulations.audit.report import audited
from simulations.audit.subject import subjects_of
from simulations.deployment.rehearsal import write_digits
from simulations.inference.loading import load_client
from simulations.reports.runs import load_run
from simulations.testing.lab import NORMED

KEPT = {"keep_uploads": True, "models": "mlp", "clients": 3, "rounds": 1}
OVERFITTED = KEPT | {"clients": 12, "local_batches": 0, "local_epochs": 40, "learning_rate": 0.003}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Let attackers optimise for a fraction of their steps: what they find is clear by then."""
    monkeypatch.setattr(imitation, "DISTILLING", 30)
    monkeypatch.setattr(pictures, "STARTS", 2)
    monkeypatch.setattr(pictures, "LONG", 200)


@pytest.fixture
def read(lab):
    """How the payloads of a run are read, by its config keys; with ``random`` noise was uploaded, of the same size."""

    def of(*, random: bool = False, most: int = 0, **keys):
        subjects = subjects_of(lab.run(lab.config(**KEPT | keys)), most=most)
        return readings_of([replace(one, kept=tuple(map(_noise, one.kept))) if random else one for one in subjects])

    return of


def _noise(kept):
    rng = np.random.default_rng(kept.client_id)
    floats = {name: array for name, array in kept.upload.items() if array.dtype.kind == "f"}
    drawn = {
        name: (rng.normal(size=array.shape) * max(float(array.std()), 0.1)).astype(array.dtype)
        for name, array in floats.items()
    }
    return replace(kept, upload={**kept.upload, **drawn})


def figures(found):
    """Return figure, without, chance and best of each measure, by its first word."""
    return {measure.split()[0]: numbers for measure, *numbers in found.figures}


def test_an_overfitted_model_gives_its_members_away(read):
    area, _, _, reference = figures(by_likelihood(read(**OVERFITTED, algorithm="fedavg", most=2), 4))["AUC"]
    assert area > 0.58
    assert reference is None


def test_membership_of_samples_that_nobody_has_trained_on_is_a_coin(lab):
    """Both halves of the test samples are strangers: whatever the scores are scaled by, it must be one for both."""
    skewed = KEPT | {"rounds": 5, "partition": "dirichlet:0.5"}
    subjects = subjects_of(lab.run(lab.config(**skewed, algorithm="fd")))
    halves = [np.arange(len(one.strangers)) for one in subjects]
    strangers = [
        replace(one, members=one.strangers.some(rows[::2]), strangers=one.strangers.some(rows[1::2]))
        for one, rows in zip(subjects, halves, strict=True)
    ]
    found = figures(by_likelihood(readings_of(strangers), 4))
    assert found["AUC"][0] == pytest.approx(0.5, abs=0.12)
    assert found["TPR"][0] < 0.1


def test_strangers_have_the_classes_of_members_where_all_clients_test_on_all_classes(lab):
    """Else an attack that tells the client's classes passes for one that tells its samples."""
    skewed = KEPT | {"partition": "classes:2", "iid_evaluation": True}
    for one in subjects_of(lab.run(lab.config(**skewed, algorithm="fd"))):
        members, strangers = (np.bincount(rows.labels, minlength=10) for rows in (one.members, one.strangers))
        assert set(np.flatnonzero(strangers)) == set(np.flatnonzero(members))
        assert strangers / strangers.sum() == pytest.approx(members / members.sum(), abs=0.1)
        assert strangers.sum() > 5


def test_the_attacker_has_the_body_that_has_made_the_upload_and_not_the_best_one(read):
    keys = {"algorithm": "fedproto", "rounds": 12, "learning_rate": 0.01, "keep_best": True, "validation_fraction": 0.2}
    for reading in read(**keys):
        found = reading.learnt(reading.subject.trained_on, reading.subject.rng("test"))
        np.testing.assert_allclose(found["prototypes"], reading.upload["prototypes"], rtol=1e-4, atol=1e-5)


def test_counts_that_are_sent_are_read_to_the_sample(read):
    found = figures(UPLOAD_READERS["as sent"].run(read(algorithm="fedproto", partition="dirichlet:0.1")))
    error, another, *_ = found["histogram"]
    assert (error, found["class"][0]) == (0, 1)
    assert another > 0.3


def test_weights_of_skewed_clients_show_their_classes_and_noise_does_not(read, tmp_path):
    keys = {"algorithm": "fedavg", "partition": "classes:2", "local_batches": 0, "local_epochs": 5}
    found = figures(by_imitation(read(**keys), 12))
    error, _, chance, _ = found["histogram"]
    assert error < 0.8 * chance
    assert found["class"][0] > 0.9
    noise = by_imitation(read(**keys, random=True, output_dir=str(tmp_path / "noise")), 12)
    assert figures(noise)["class"][0] == pytest.approx(0.5, abs=0.25)


@pytest.mark.parametrize("most", [10_000, 20])
def test_a_step_over_one_sample_gives_that_sample_away_and_noise_does_not(read, monkeypatch, most):
    """However few of its samples the attacks take, the client has drawn from all."""
    monkeypatch.setattr("simulations.audit.subject.MAX_ROWS", most)
    keys = {"algorithm": "fedavg", "optimizer": "sgd", "local_batches": 1, "batch_size": 1, "learning_rate": 0.1}
    known = read(**keys, most=1)
    assert [fits_gradient(reading) for reading in known] == [""]
    assert figures(by_gradient(known))["PSNR,"][0] > 25
    noise = readings_of([replace(one.subject, kept=(_noise(one.subject.last),)) for one in known])
    psnr, _, chance, _ = figures(by_gradient(noise))["PSNR,"]
    assert psnr < chance + 1


def test_prototypes_of_an_identity_are_the_class_means(read):
    """The body flattens the picture: what is sent is the mean picture itself."""
    found = by_means(read(algorithm="fedproto", models="fixtures.models:linear", most=1))
    assert figures(found)["PSNR,"][0] > 25


@pytest.mark.parametrize(
    "algorithm", ["fedhe", "fd", "fedh2l", "chfl", "fedrep", "fml", "fedkd", "fedhenn", "heterofl"]
)
def test_every_kind_of_payload_has_an_attack(lab, algorithm):
    folder = lab.run(lab.config(**KEPT | {"clients": 2}, algorithm=algorithm))
    found = audited(folder, shadows=2, clients=1)
    assert {one.measure for one in found.findings} >= {"AUC", "TPR at 1 % FPR"}
    said = json.loads((folder / "audit" / "audit.json").read_text())
    assert len(said["findings"]) == len(found.findings)
    assert all(path.stat().st_size > 1000 for path in found.pictures)


def test_figures_are_the_same_each_time_where_training_draws_numbers_of_its_own(lab):
    """As with dropout, which takes them from the global generator."""
    folder = lab.run(lab.config(**KEPT | {"clients": 2, "models": NORMED, "algorithm": "fedavg"}))
    assert audited(folder, shadows=2, mimics=2).findings == audited(folder, shadows=2, mimics=2).findings


def divides(model, rate):
    """The slow twin of a part of HeteroFL's network: what each layer of its body gives is divided by the rate."""
    for layer in model.body.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(lambda layer, inputs, output: output / rate)
    return model


@pytest.mark.parametrize("wide", ["lenet5", NORMED])
def test_a_part_of_a_network_predicts_as_its_method_does(lab, wide):
    """With batch norm, whose statistics stay with the client, they are those of the attacker's samples."""
    keys = {"algorithm": "heterofl", "models": f"{wide},{wide}@0.5", "rounds": 2}
    [_, narrow, *_] = readings_of(subjects_of(lab.run(lab.config(**KEPT | keys))))
    subject, upload = narrow.subject, narrow.subject.last.upload
    assert subject.last.download["rate"] == 0.5
    sent = {name: array for name, array in upload.items() if name != "classes"}
    model = divides(loaded(subject.model, sent), 0.5)
    inputs = subject.strangers.inputs
    with torch.no_grad():
        if wide == NORMED:
            take_statistics(model, [subject.known.inputs])
        twin = model.eval()(inputs)
        torch.testing.assert_close(narrow.own(inputs), twin, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(loaded(subject.model, sent)(inputs), twin)


def test_an_imitation_with_a_client_s_own_samples_in_its_order_is_its_upload(lab):
    """A part of a network is trained with the division by its width."""
    keys = {"algorithm": "heterofl", "heterofl.mask": False, "models": "mlp,mlp@0.5"}
    for reading in readings_of(subjects_of(lab.run(lab.config(**KEPT | keys)))):
        subject = reading.subject
        found = reading.learnt(subject.trained_on, generator(subject.config.seed, subject.client_id, 1, "batches"))
        for name, array in subject.last.upload.items():
            np.testing.assert_allclose(found[name].numpy(), array, rtol=1e-4, atol=1e-6)


def forged(folder, what, value):
    """Fill the arrays of round 1 whose names begin so with one value."""
    path = folder / "uploads" / "round-1.safetensors"
    metadata, arrays, _ = read_blob(path, UPLOADS)
    chosen = [name for name, array in arrays.items() if name.startswith(what) and array.dtype.kind == "f"]
    path.write_bytes(pack(UPLOADS, metadata, arrays | {name: np.full_like(arrays[name], value) for name in chosen}))
    return folder


def deep(spec):
    layers = [nn.Flatten(), nn.Linear(64, 16), *(nn.Linear(16, 16) for _ in range(8))]
    return SplitModel(nn.Sequential(*layers), nn.Linear(16, spec.classes))


@pytest.mark.parametrize(("algorithm", "liars"), [("fedavg", [1]), ("fedrep", [1]), ("fedavg", [0, 1, 2])])
def test_an_upload_of_huge_weights_takes_its_client_alone_out_of_the_attacks(lab, algorithm, liars):
    """The weights of ten layers are within the limit of each, and what they make of a sample overflows."""
    folder = lab.run(lab.config(**KEPT | {"models": "test_audit:deep"}, algorithm=algorithm))
    for client in liars:
        forged(folder, f"upload.{client}.", 9e5)
    found = audited(folder, shadows=2, mimics=2)
    assert any(one.measure == "AUC" for one in found.findings) == (len(liars) < 3)
    said = {attack: why for attack, why in found.skipped.items() if "cannot be fitted" in why}
    assert len(said) >= 2
    assert all(f"client {', '.join(map(str, liars))} has sent" in why for why in said.values())


@pytest.fixture
def deployed(lab):
    """The folder of a run as a deployment leaves it: the server's part of a simulated one, by its config keys."""

    def of(**keys):
        folder = lab.run(lab.config(**KEPT | {"clients": 2, "local_batches": 0, "local_epochs": 3} | keys))
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"engine": "deployment"}))
        for path in folder.glob("checkpoint/round-*/client-*"):
            path.unlink()
        return folder

    return of


def test_of_a_deployment_uploads_are_read_as_they_are(deployed, hetfl):
    folder = deployed(algorithm="fedproto", partition="classes:2")
    found = audited(folder)
    assert (found.findings, found.pictures) == ([], [])
    assert [one.attack for one in found.estimates] == ["as sent", "as sent"]
    assert [int((one.shares > 0).sum()) for one in found.estimates] == [2, 2]
    said = json.loads((folder / "audit" / "audit.json").read_text())["estimates"]
    assert [one["client"] for one in said] == [0, 1]
    done = hetfl("audit", folder)
    assert (done.status, done.out.count("--node 0=STATE_DIR")) == (0, 1)


def test_the_bias_of_a_deployments_head_tells_its_classes(deployed):
    found = audited(deployed(algorithm="fedavg", partition="classes:2")).estimates
    assert [one.attack for one in found] == ["bias of the head"] * 2
    assert all(set(np.argsort(-one.shares)[:2]) <= set(np.flatnonzero(one.shares > 0.2)) for one in found)


def test_a_deployment_is_measured_against_its_clients_folders(deployed, tmp_path):
    """The server has the model, so the data are enough; numbers 0 and 1 of the rehearsal's digits."""
    places = {number: tmp_path / f"node-{number}" for number in range(2)}
    write_digits([*places.values()])
    found = audited(deployed(algorithm="fedavg"), shadows=2, clients=1, places=places)
    assert {one.measure for one in found.findings} >= {"AUC", "histogram error (TV)"}
    assert found.estimates == []


@pytest.mark.parametrize(
    ("keys", "nodes", "message"),
    [
        ({"algorithm": "fedmd"}, [], "classes"),
        ({"algorithm": "fedavg"}, ["0=."], "two"),
        ({"algorithm": "fedavg"}, ["0=.", "2=."], "--node 2"),
        ({"algorithm": "fedavg"}, ["0=nowhere", "1=."], "nowhere"),
        ({"algorithm": "fedavg"}, ["x=."], "--node x=."),
        ({"algorithm": "fedavg"}, ["0=.", "0=."], "client 0"),
    ],
)
def test_a_deployment_that_cannot_be_audited_is_refused(deployed, hetfl, keys, nodes, message):
    more = {"fedmd.pretrain-epochs": 1, "fedmd.pretrain-private-epochs": 1} if keys["algorithm"] == "fedmd" else {}
    done = hetfl("audit", deployed(**keys, **more), *(f"--node={node}" for node in nodes))
    assert (done.refused, message in done.err) == (True, True)


@pytest.mark.parametrize(
    ("keys", "options", "named"),
    [
        ({"keep_uploads": False}, {}, "keep-uploads"),
        ({"algorithm": "fixtures.echo"}, {}, "fixtures.echo"),
        ({"algorithm": "fedproto", "partition": "all"}, {}, "partition"),
        ({}, {"places": {0: Path(), 1: Path()}}, "--node"),
        ({}, {"shadows": 1}, "shadows"),
        ({}, {"clients": -1}, "clients"),
        *(({}, {"device": device}, "device") for device in ("", "x", "cuda:", "meta", "cpu:1")),
        *(({}, {"device": "cuda"}, "CUDA") for _ in range(not torch.cuda.is_available())),
    ],
)
def test_a_run_that_cannot_be_audited_is_refused(lab, refusal, keys, options, named):
    folder = lab.run(lab.config(**KEPT | keys))
    assert named in refusal((ConfigError, RunFolderError), audited, folder, **options)


def test_clients_are_as_many_as_took_part_where_flower_knew_their_number(lab):
    """With Flower's engines ``clients`` may be left out of the run config."""
    folder = lab.run(lab.config(**KEPT, algorithm="fedavg", noise_multiplier=1.0, clipping_norm=1.0, fraction=0.5))
    (folder / "config.toml").write_text((folder / "config.toml").read_text().replace("clients = 3", "clients = 0", 1))
    assert len(subjects_of(folder)) == 2
    assert load_client(folder, 2).client_id == 2
    assert sampling_rates(folder) == [1.0, 2 / 3]


def sampling_rates(folder):
    pytest.importorskip("dp_accounting")
    return [one.rate for one in guarantees(load_run(folder))[0]]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"algorithm": "fedavg", "local_batches": 3}, "one step"),
        ({"algorithm": "fedavg", "fedavg.exchange-every": 2}, "one step"),
        ({"algorithm": "fedavg", "moments": "kept", "momentum": 0.9, "rounds": 2}, "one step"),
        ({"algorithm": "fml"}, "cross-entropy"),
        ({"algorithm": "heterofl"}, "cross-entropy"),
        ({"algorithm": "fedavg", "augment": "flip"}, "augment"),
    ],
)
def test_an_upload_of_more_than_one_plain_step_on_its_samples_is_no_gradient(read, keys, why):
    [reading] = read(**{"optimizer": "sgd", "local_batches": 1, "batch_size": 1} | keys, most=1)
    assert why in fits_gradient(reading)


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"algorithm": "fedh2l", "fedh2l.exchange-every": 3}, 3 * 2),
        ({"algorithm": "fedavg", "fedavg.exchange-every": 3, "local_batches": 2}, 3 * 2 * 2),
        ({"algorithm": "fedmd", "local_batches": 0, "local_epochs": 2, "batch_size": 30}, 2 * 2 * 2),
        ({"algorithm": "fedavg", "local_batches": 0, "local_epochs": 2, "batch_size": 39}, 2 * 2),
    ],
)
def test_an_imitation_takes_the_steps_that_its_client_has_taken(lab, monkeypatch, keys, steps):
    """Over two rounds; two epochs of 40 samples in batches of 30 are four steps, and in batches of 39 two: no step is
    of one sample."""
    subject = subjects_of(lab.run(lab.config(**KEPT | keys | {"rounds": 2})))[0]
    drawn = []

    def draw_batches(*args, batches, **more):
        drawn.append(batches)
        return iter(())

    monkeypatch.setattr(imitation, "draw_batches", draw_batches)
    model = imitation.fresh(subject, subject.rng("imitated"))
    imitation.trained(model, subject.known.some(np.arange(40)), subject, subject.rng("order"))
    assert drawn == [steps]


@pytest.mark.parametrize("algorithm", ["chfl", "lgfedavg"])
def test_a_head_is_imitated_from_what_was_sent_and_not_from_what_the_client_has_learnt(lab, algorithm):
    """The client's own head, its bias above all, tells of the very labels that the imitation is to find out."""
    [subject] = subjects_of(lab.run(lab.config(**KEPT | {"clients": 2}, algorithm=algorithm)), most=1)
    rows, inputs = subject.known.some(np.arange(40)), subject.known.inputs
    before = Head(subject).imitated(rows, subject.rng("test"))(inputs)
    with torch.no_grad():
        for parameter in subject.model.head.parameters():
            parameter.fill_(7.0)
    assert torch.equal(before, Head(subject).imitated(rows, subject.rng("test"))(inputs))


def test_the_change_of_a_head_that_is_clipped_is_imitated_from_where_the_client_began_the_round(lab, monkeypatch):
    """Of the client's own samples, the imitated change points where the client's own does."""
    sent = []
    monkeypatch.setattr(readings, "as_sent", lambda subject, learnt, rng: sent.append(learnt) or learnt)
    keys = KEPT | {"algorithm": "lgfedavg", "clients": 2, "rounds": 4, "clipping_norm": 1.0, "local_batches": 20}
    [subject] = subjects_of(lab.run(lab.config(**keys)), most=1)
    Head(subject).imitated(subject.members, subject.rng("test"))
    began = subject.last.download["weight"]
    own, imitated = subject.last.upload["weight"] - began, sent[0]["weight"] - began
    assert np.sum(own * imitated) > 0.7 * np.linalg.norm(own) * np.linalg.norm(imitated)


@pytest.mark.parametrize(("algorithm", "rounds"), [("fedproto", 16), ("fedavg", 16), ("chfl", 1), ("fedhe", 1)])
def test_an_imitated_client_clips_and_adds_noise_as_the_client_does_and_drowned_uploads_are_averaged(
    lab, algorithm, rounds
):
    """The noise of 50 clipping norms is all that is in an upload; sixteen have a quarter of it, also if imitated."""
    keys = {"clipping_norm": 1.0, "noise_multiplier": 50.0, "clients": 2, "rounds": rounds, "local_batches": 1}
    [subject] = subjects_of(lab.run(lab.config(**KEPT | keys, algorithm=algorithm)), most=1)
    assert len(read_together(subject)) == rounds
    pooled, imitated = pooled_upload(subject), as_sent(subject, subject.last.download, subject.rng("test"))
    name = max((name for name in pooled if pooled[name].dtype.kind == "f"), key=lambda name: pooled[name].size)
    begun = subject.last.download[name] if algorithm == "fedavg" else 0
    for upload, noise in ((subject.last.upload, 50.0), (pooled, 50 / rounds**0.5), (imitated, 50 / rounds**0.5)):
        assert np.std(upload[name] - begun) == pytest.approx(noise, rel=0.1 if rounds > 1 else 0.2)
