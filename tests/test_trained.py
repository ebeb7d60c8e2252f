"""What a client has learnt is read back from its run folder."""

import json
import re

import pytest

from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.trained import load_client
from hetfl_flwr.training import evaluate


@pytest.mark.parametrize("keep_best", [False, True])
def test_a_client_s_model_measures_what_its_run_has_measured(make_config, run_federation, keep_best):
    config = make_config(
        models="mlp,lenet5", clients=2, rounds=4, keep_best=keep_best, validation_fraction=0.2, learning_rate=0.02
    )
    folder = run_federation(config)
    accuracies = json.loads((folder / "summary.json").read_text())["accuracy_per_client"]
    for partition, (accuracy, model) in enumerate(zip(accuracies, ("mlp", "lenet5"), strict=True)):
        node = load_client(folder, partition)
        assert node.model_name == model
        assert evaluate(node.model, node.data.test).accuracy == accuracy


@pytest.mark.parametrize(
    ("algorithm", "partition", "said"), [("fedhe", 2, "no model of client 2"), ("fedavg", 0, "no model")]
)
def test_where_there_is_no_model(make_config, run_federation, algorithm, partition, said):
    folder = run_federation(make_config(algorithm=algorithm, models="lenet5", clients=2, rounds=1))
    with pytest.raises(RunFolderError, match=re.escape(said)):
        load_client(str(folder), partition)
