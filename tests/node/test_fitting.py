"""`models = "fit"`: the largest candidate within the limits, chosen once a run, and alike where it is simulated."""

import pytest
from fixtures.folders.reached import clients_of, summary_of
from fixtures.tiers import exhaustive
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from hetfl_flwr.client_app import app
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import check_options
from hetfl_flwr.node import fitting
from hetfl_flwr.node.node import Node
from hetfl_flwr.node.state import ClientState
from hetfl_flwr.wire.messages import CONFIG, MEMBER, ROUND, RUN
from simulations.testing.contract import entries

GIVEN = {"models": "fit", "fit_models": "fedhenn:0,mlp,lenet5", "fit_seconds": 0.5, "batch_size": 50}
"""On digits they have 1,610, 55,210 and 21,386 weights, their rounds take 0.0044, 0.0455 and 0.0571 GFLOP, and they
0.27, 0.98 and 0.62 MB."""

LAYERS = ((64, 200), (200, 200), (200, 10))
"""Of the perceptron on digits."""


def fits(**changes):
    return GIVEN | changes


def test_the_seconds_and_bytes_of_a_perceptron_are_those_that_one_counts_by_hand(make_config, make_node):
    """A linear layer takes 2 B in out operations forwards, as many for the gradient of its weights, and as many for
    that of its inputs, which the first layer has no use for. Adam has two moments and a counter for each array; a step
    keeps the inputs, both hidden layers, the scores, the labels and their count."""
    config = make_config(**fits(fit_models="mlp", client_speed="1"))
    samples = make_node(config).data.train
    trial = fitting._tried(config, samples, lambda name: fitting_model(make_node, config, name), "mlp", 1e9)
    forwards = [2 * 50 * wide * high for wide, high in LAYERS]
    assert trial.seconds == pytest.approx(3 * (3 * sum(forwards) - forwards[0]) / 1e9, rel=1e-9)
    numbers = sum(wide * high + high for wide, high in LAYERS)
    assert trial.parameters == numbers
    kept = 4 * 50 * (64 + 200 + 200 + 10) + 8 * 50
    assert trial.memory == pytest.approx(4 * 4 * numbers + kept, rel=1e-3)


def fitting_model(make_node, config: RunConfig, name: str):
    return make_node(config.with_values({"models": name})).model


@pytest.mark.parametrize(
    ("limits", "chosen"),
    [
        ({"client_speed": "1000"}, "mlp"),
        ({"client_speed": "0.1"}, "mlp"),
        ({"client_speed": "0.12", "fit_memory": 0.7}, "lenet5"),
        ({"client_speed": "0.12", "fit_memory": 0.5}, "fedhenn:0"),
        ({"client_speed": "0.07"}, "fedhenn:0"),
        ({"client_speed": "1e-6", "fit_seconds": 0.0, "fit_memory": 100.0}, "mlp"),
    ],
    ids=str,
)
def test_the_largest_that_keeps_both_limits_is_taken(make_config, make_node, limits, chosen):
    node = make_node(make_config(**fits(**limits)))
    assert node.model_name == chosen
    assert node.why.startswith(f"client 0, models = fit: {chosen} takes ")


def test_speeds_go_round_and_a_slower_device_never_has_the_larger_model(make_config, make_node):
    config = make_config(**fits(clients=6, client_speed="10,0.01", fit_seconds=0.6))
    nodes = [make_node(config, client) for client in range(6)]
    assert [node.model_name for node in nodes] == ["mlp", "fedhenn:0"] * 3
    assert "lenet5 takes " in nodes[1].why


def test_where_none_fits_the_nearest_is_named_with_what_it_takes(refusal, make_config, make_node):
    said = refusal(ConfigError, make_node, make_config(**fits(client_speed="0.0001", fit_memory=0.001)), 1)
    assert ("fit-seconds = 0.5 s" in said, "fit-memory = 0.001 MB" in said, "fedhenn:0 takes" in said) == (True,) * 3


@pytest.mark.parametrize("missing", [{"fit_seconds": 0.0}, {"client_speed": ""}], ids=str)
def test_what_is_missing_is_named(refusal, make_config, make_node, missing):
    [key] = missing
    said = refusal(ConfigError, make_node, make_config(**{"client_speed": "1", **fits(**missing)}))
    assert key.replace("_", "-") in said


def test_algorithms_that_share_one_model_choose_none(refusal, make_config):
    config = make_config(**{"client_speed": "1", **fits(algorithm="fedavg")})
    assert "fedavg" in refusal(ConfigError, check_options, config)


def test_candidates_are_those_of_auto_unless_named_and_parts_of_one_network_where_it_needs_them(make_config, make_node):
    speed = {"models": "fit", "fit_memory": 1e6, "client_speed": "1"}
    assert make_node(make_config(**speed)).config.fit_models == "lenet5,mlp,fedhe:5"
    assert make_node(make_config(**speed, algorithm="heterofl")).config.fit_models == "lenet5,lenet5@0.5"


# --- on a device that can be timed -----------------------------------------------------------------


@pytest.fixture
def deployed(monkeypatch):
    monkeypatch.setattr("hetfl_flwr.node.node.simulated", lambda: False)


@pytest.mark.usefixtures("deployed")
def test_a_device_of_its_own_is_timed_by_its_own_limits_and_candidates(refusal, make_config, make_node):
    config = make_config(**fits(dataset="digits", fit_seconds=1000.0))
    assert make_node(config, model="fit").model_name == "mlp"
    own = {"model": "fit", "fit-models": "mlp,fedhenn:0", "fit-memory": 0.5}
    assert make_node(make_config(models="lenet5", dataset="digits"), 0, **own).model_name == "fedhenn:0"
    said = refusal(ConfigError, make_node, make_config(**fits(dataset="digits", fit_seconds=1e-9)))
    assert "fit-seconds = 1e-09 s" in said


def test_the_median_of_the_steps_counts_and_an_endless_one_is_not_repeated(monkeypatch, make_config, make_node):
    """The clock is read before and after a step; the first step warms up."""
    config = make_config(**fits(client_speed="1"))
    node = make_node(config)
    for durations, seconds, steps in (((9, 1, 5, 2), 2, 4), ((50, 1, 1, 1), 50, 1)):
        times = [time for number, took in enumerate(durations) for time in (1000 * number, 1000 * number + took)]
        clock = iter(times)
        monkeypatch.setattr(fitting, "perf_counter", lambda clock=clock: next(clock))
        model = fitting_model(make_node, config, "fedhenn:0")
        found, _ = fitting._measured(config, node.data.train, model, None, 20)
        assert found == seconds
        assert len(list(clock)) == 2 * (4 - steps)


# --- once a run ------------------------------------------------------------------------------------


def registered(context: Context, before: str = "") -> str:
    """Register, and return the model that is named, and why."""
    origin = {CONFIG: ConfigRecord({RUN: before, ROUND: 1})} if before else {}
    reply = app(Message(RecordDict(origin), context.node_id, MessageType.QUERY), context)
    assert not reply.has_error(), reply.error.reason
    record = reply.content.config_records[MEMBER]
    assert [note for note in record["notes"] if "models = fit" in note]
    return str(record["model"])


@pytest.fixture
def timings(monkeypatch):
    """The candidates that have been tried, each time."""
    tried = []
    was = fitting._tried
    monkeypatch.setattr(fitting, "_tried", lambda *given: tried.append(given[3]) or was(*given))
    return tried


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_choice_is_made_once_a_run_and_a_run_that_goes_on_keeps_it(
    make_config, make_context, tmp_path, timings, on_disk
):
    """Its limits have changed meanwhile: a new run on the same node chooses anew, as does one without saved state."""
    kept = {"state_dir": str(tmp_path / "state")} if on_disk else {}
    config = make_config(**fits(client_speed="1", **kept))
    context = make_context(config, run=7)
    assert registered(context) == "mlp"
    assert len(timings) == 3
    node = Node.from_context(context)
    assert node.model_name == "mlp"
    assert len(timings) == 3
    node.write_state(ClientState(round=1))
    lower = make_config(**fits(client_speed="1", fit_memory=0.5, **kept))
    assert registered(make_context(lower, run=8)) == "fedhenn:0"
    assert registered(make_context(lower, run=9), before="7") == ("mlp" if on_disk else "fedhenn:0")
    if on_disk:
        assert Node.from_context(make_context(lower, run=7)).model_name == "mlp"  # it has restarted
        assert len(timings) == 6


# --- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, exhaustive(2)])
def test_a_round_takes_the_operations_of_the_slowest_over_its_speed(make_config, run_federation, workers):
    """Give or take a tenth. Two clients of equal networks; the second is a hundred times as slow."""
    config = make_config(algorithm="local", models="mlp", rounds=2, client_speed="1,0.01")
    folder = run_federation(config, workers=workers)
    rounds = entries(folder)
    for number in (1, 2):
        took = rounds[number]["clock"] - rounds[number - 1]["clock"]
        assert took == pytest.approx(rounds[number]["clients"]["1"]["flops"] / 1e7, rel=0.11)
    assert summary_of(folder)["costs"].keys() == {"flops"}


def test_a_fast_device_uploads_more_often(make_config, run_federation):
    """Equal networks, one device ten times as fast, asynchronous."""
    keys = {"algorithm": "fedhe", "fedhe.mode": "async", "models": "mlp", "clients": 2, "rounds": 6}
    ups = [client["bytes_up"] for client in clients_of(run_federation(make_config(**keys, client_speed="1,0.1")))]
    assert ups[0] >= 5 * ups[1] > 0


def test_a_run_says_who_has_which_model_and_why(make_config, run_federation):
    folder = run_federation(make_config(**fits(clients=2, rounds=1, client_speed="10,0.01")))
    assert [client["model"] for client in clients_of(folder)] == ["mlp", "fedhenn:0"]
    lines = (folder / "notes.txt").read_text().splitlines()
    assert [line.partition(" takes")[0] for line in lines] == [
        "client 0, models = fit: mlp",
        "client 1, models = fit: fedhenn:0",
    ]
