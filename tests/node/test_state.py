import errno
import json
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import StateError
from hetfl_flwr.learning.optimizers import load_optimizer, optimizer_tensors
from hetfl_flwr.learning.training import make_optimizer
from hetfl_flwr.node import state as state_module
from hetfl_flwr.node.state import ClientState, ContextStore, FileStore, MemoryStore, Stamp, decode, encode

STAMP = Stamp(run="7", algorithm="fedhe", model="mlp", client_id=3)


def some_state():
    return ClientState(
        {
            "model.weight": torch.tensor([[0.1, -0.0], [float("inf"), float("nan")]]),
            "model.steps": torch.tensor(2**62),
            "empty": torch.zeros(0, 3),
            "half": torch.tensor([1.5], dtype=torch.float16),
        },
        {"rounds": 3, "alpha": 0.1, "best": float("-inf")},
    )


def assert_same(found):
    """See that a state is `some_state`, bit for bit."""
    for name, expected in some_state().tensors.items():
        tensor = found.tensors[name]
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert tensor.numpy().tobytes() == expected.numpy().tobytes()
    assert found.tensors.keys() == some_state().tensors.keys()
    typed = {name: (type(value), value) for name, value in found.numbers.items()}
    assert typed == {"rounds": (int, 3), "alpha": (float, 0.1), "best": (float, float("-inf"))}


@pytest.fixture(params=["context", "file", "memory"])
def new_store(request, tmp_path):
    """Build the store anew, as each message does, over the same Context or folder; that in memory lives on."""
    context, memory = Context(7, 1, {}, RecordDict(), {}), MemoryStore(FileStore(tmp_path / "under", 3))
    stores = {
        "context": lambda: ContextStore(context),
        "file": lambda: FileStore(tmp_path / "new" / "s", 3),
        "memory": lambda: memory,
    }
    return stores[request.param]


def test_what_was_saved_is_loaded_by_the_next_store_bit_for_bit_and_no_later_change_of_it_is(new_store):
    state = some_state()
    new_store().save(state, STAMP)
    for tensor in state.tensors.values():
        tensor.zero_()
    assert_same(new_store().load(STAMP, "client 3"))
    assert_same(decode(new_store().read(), STAMP, "here"))
    new_store().write(encode(ClientState({"other": torch.ones(1)}), STAMP))
    newest = decode(new_store().read(), STAMP, "here")
    assert (list(newest.tensors), newest.numbers) == (["other"], {})


def test_whose_state_it_is_is_checked_on_loading(refusal, new_store):
    new_store().save(some_state(), STAMP)
    said = refusal(StateError, new_store().load, replace(STAMP, model="lenet5"), "client 3 (lenet5)")
    assert ("client 3 (lenet5)" in said, new_store().where in said, "'mlp'" in said) == (True, True, True)


def test_what_is_forgotten_is_gone_and_may_be_forgotten_again(new_store):
    assert new_store().read() is None
    new_store().forget()
    new_store().write(b"blob")
    new_store().forget()
    assert new_store().read() is None


def test_tensors_come_back_in_their_order():
    """Safetensors writes wider types first, and then goes by name."""
    state = ClientState({"b": torch.ones(1), "a": torch.ones(1), "long": torch.ones(1, dtype=torch.int64)})
    assert list(decode(encode(state, STAMP), STAMP, "here").tensors) == ["b", "a", "long"]


def test_views_and_a_weight_in_two_places_are_saved_by_value(new_store):
    weight = nn.Parameter(torch.arange(4.0).reshape(2, 2))
    new_store().save(ClientState({"body": weight, "head": weight, "half": weight[:1], "turned": weight.T}), STAMP)
    found = {name: tensor.tolist() for name, tensor in new_store().load(STAMP, "client 3").tensors.items()}
    whole = [[0, 1], [2, 3]]
    assert found == {"body": whole, "head": whole, "half": [[0, 1]], "turned": [[0, 2], [1, 3]]}


@pytest.mark.parametrize("field", list(asdict(STAMP)))
def test_the_state_of_something_else_is_refused_by_what_was_found_and_expected(refusal, field):
    value = getattr(STAMP, field)
    other = value + 1 if isinstance(value, int) else f"{value}x"
    blob = encode(some_state(), replace(STAMP, **{field: other}))
    said = refusal(StateError, decode, blob, STAMP, "client 3: /state/client-3.safetensors")
    assert [part for part in ("/state/client-3", field, repr(other), repr(value)) if part not in said] == []


def test_the_header_holds_json_as_other_programs_read_it():
    blob = encode(some_state(), STAMP)
    size = int.from_bytes(blob[:8], "little")
    assert '"best": "-Infinity"' in json.loads(blob[8 : 8 + size])["__metadata__"]["state"]


def test_a_folder_holds_one_file_a_client_and_no_remains(tmp_path):
    for client_id in (1, 11):
        FileStore(tmp_path, client_id).write(str(client_id).encode())
    assert FileStore(tmp_path, 1).read() == b"1"
    assert FileStore(tmp_path, 11).read() == b"11"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client-1.safetensors", "client-11.safetensors"]


@pytest.mark.parametrize("links", [True, False])
def test_what_was_kept_stays_when_the_file_is_replaced_also_where_a_disk_has_no_links(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", Mock(side_effect=OSError(errno.EPERM, "not permitted")))
    store = FileStore(tmp_path, 3)
    store.write(b"older")
    for _ in range(2):  # the second time, both names are of one file already, and a rename would do nothing
        store.keep()
    store.write(b"newer")
    assert (store.read(), store.kept()) == (b"newer", b"older")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["client-3.checkpoint.safetensors", "client-3.safetensors"]


def die_before_renames(monkeypatch):
    """As by SIGKILL: nothing is renamed, nothing is cleaned up."""
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(SystemExit))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)


def test_what_a_killed_process_was_keeping_is_not_written_through(tmp_path, monkeypatch):
    """Of a process with the same id, as in a container; it died between the link and its rename."""
    store = FileStore(tmp_path, 3)
    store.write(b"older")
    die_before_renames(monkeypatch)
    with pytest.raises(SystemExit):
        store.keep()
    with pytest.raises(SystemExit):
        store.write(b"newer")  # and the next one dies before its rename, too
    assert FileStore(tmp_path, 3).read() == b"older"


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_is_named_and_the_older_blob_stays(refusal, tmp_path, monkeypatch, step):
    store = FileStore(tmp_path, 3)
    store.write(b"older")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(step, full)
        said = refusal(StateError, store.write, b"newer")
    assert (str(tmp_path / "client-3.safetensors") in said, "No space left" in said) == (True, True)
    assert store.read() == b"older"
    assert [path.name for path in tmp_path.iterdir()] == ["client-3.safetensors"]


def test_the_file_is_flushed_to_disk_before_it_is_renamed(tmp_path, monkeypatch):
    done = []
    fsync, rename = state_module.os.fsync, Path.replace
    monkeypatch.setattr(state_module.os, "fsync", lambda file: (done.append("fsync"), fsync(file)))
    monkeypatch.setattr(Path, "replace", lambda path, target: (done.append("rename"), rename(path, target))[1])
    FileStore(tmp_path, 3).write(b"blob")
    assert done == ["fsync", "rename", "fsync"]


def test_a_file_where_the_folder_should_be_is_named(refusal, tmp_path):
    (tmp_path / "state").write_text("I am no folder")
    store = FileStore(tmp_path / "state", 3)
    for act, given in ((store.write, (b"blob",)), (store.read, ()), (store.forget, ())):
        assert "client-3.safetensors" in refusal(StateError, act, *given)


def test_runs_that_share_a_context_do_not_see_each_other_s_state():
    state = RecordDict()
    seven, eight = (ContextStore(Context(run, 1, {}, state, {})) for run in (7, 8))
    seven.write(b"seven")
    assert eight.read() is None
    eight.write(b"eight")
    assert (eight.read(), seven.read()) == (b"eight", None)


@pytest.mark.parametrize(
    "keys",
    [
        *({"optimizer": name} for name in ("adam", "amsgrad", "sgd")),
        {"optimizer": "adamw", "weight_decay": 0.1},
        {"optimizer": "sgd", "momentum": 0.9},
    ],
    ids=str,
)
def test_two_steps_saved_and_two_more_are_four_steps_bit_for_bit(keys):
    def model():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        return net, make_optimizer(RunConfig(learning_rate=0.1, **keys), net.parameters())

    def steps(net, optimizer, numbers):
        for number in numbers:
            inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            net(inputs).pow(2).sum().backward()
            optimizer.step()

    (whole, undisturbed), (first, optimizer), (second, resumed) = model(), model(), model()
    steps(whole, undisturbed, [1, 2, 3, 4])
    steps(first, optimizer, [1, 2])
    saved = [encode(ClientState(tensors), STAMP) for tensors in (first.state_dict(), optimizer_tensors(optimizer))]
    weights, moments = (decode(blob, STAMP, "").tensors for blob in saved)
    second.load_state_dict(weights)
    load_optimizer(resumed, moments)
    steps(second, resumed, [3, 4])
    assert all(torch.equal(second.state_dict()[name], value) for name, value in whole.state_dict().items())


@pytest.mark.parametrize("settings", [{"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"}])
def test_a_parameter_that_has_lost_its_moments_is_stepped_as_by_a_new_optimizer(settings):
    """Beside one that has kept them: each as by an optimizer of its own."""
    config = RunConfig(**settings)

    def stepped(*weights, optimizer=None):
        optimizer = optimizer or make_optimizer(config, weights)
        for weight in weights:
            weight.grad = torch.arange(3.0)
        optimizer.step()
        return optimizer

    kept, lost, alone = (nn.Parameter(torch.ones(3)) for _ in range(3))
    both, own = stepped(kept, lost), stepped(alone)
    both.state.pop(lost)
    anew = nn.Parameter(lost.detach().clone())
    stepped(kept, lost, optimizer=both)
    stepped(alone, optimizer=own)
    stepped(anew)
    assert torch.equal(kept, alone)
    assert torch.equal(lost, anew)


def test_the_first_round_s_optimizer_has_no_moments_to_load():
    optimizer = make_optimizer(RunConfig(), nn.Linear(2, 2).parameters())
    load_optimizer(optimizer, optimizer_tensors(optimizer))
    assert optimizer.state_dict()["state"] == {}
