"""Models: the zoo, splitting any module, names, and the errors that a user can cause."""

import sys
from typing import Any

import pytest
import torch
from fixtures.zoo import assert_is_a_model_of_the_zoo, samples
from torch import nn
from torch.nn import functional

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ConfigError, ModelError
from hetfl_flwr.models import (
    SplitModel,
    assign,
    build_model,
    parameter_count,
    parse_models,
    split,
)

DIGITS = DataSpec(shape=(1, 8, 8), classes=10)
MNIST = DataSpec(shape=(1, 28, 28), classes=10)
CIFAR = DataSpec(shape=(3, 32, 32), classes=10)
TABLE = DataSpec(shape=(30,), classes=2)
TABULAR = tuple(f"tabular:{number}" for number in range(10))
FEDHE = tuple(f"fedhe:{number}" for number in range(10))
FEDPROTO = ("fedproto:18", "fedproto:20", "fedproto:22")
FEDHENN = tuple(f"fedhenn:{number}" for number in range(5))
NAMES = ("mlp", "lenet5", "lenet", "cnn1", "cnn2", "cnn4", *FEDHE, *FEDHENN, *FEDPROTO, *TABULAR)
SERIES = ("conv1d:small", "conv1d:medium", "conv1d:large")


def conv(inputs: int, outputs: int, size: int) -> int:
    return inputs * outputs * size**2 + outputs


def dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


NORM = 2
"""Scale and shift of each channel."""

LAYERS: list[Any] = [
    ("mlp", MNIST, [dense(784, 200), dense(200, 200), dense(200, 10)]),
    ("mlp", TABLE, [dense(30, 200), dense(200, 200), dense(200, 2)]),
    ("tabular:4", TABLE, [dense(30, 63), dense(63, 2)]),
    # 28 -> 14 (padding 2, pooling) -> 10 -> 5; on small images 8 -> 4 -> 4 (padded) -> 2
    ("lenet5", MNIST, [conv(1, 6, 5), conv(6, 16, 5), dense(16 * 25, 120), dense(120, 84), dense(84, 10)]),
    ("lenet5", DIGITS, [conv(1, 6, 5), conv(6, 16, 5), dense(16 * 4, 120), dense(120, 84), dense(84, 10)]),
    # 28 -> 24 -> 12 -> 8 -> 4; 8 -> 4 -> 2 -> 2 (padded) -> 1
    ("lenet", MNIST, [conv(1, 20, 5), conv(20, 50, 5), dense(50 * 16, 500), dense(500, 10)]),
    ("lenet", DIGITS, [conv(1, 20, 5), conv(20, 50, 5), dense(50, 500), dense(500, 10)]),
    # 32 -> 30 -> 15 -> 13 -> 6 (-> 4 -> 2)
    ("cnn1", CIFAR, [conv(3, 6, 3), conv(6, 16, 3), dense(16 * 36, 120), dense(120, 10)]),
    ("cnn2", CIFAR, [conv(3, 128, 3), 2 * (9 * 128 * 128 + 128), dense(128 * 4, 10)]),
    # 32 -> 28 -> 14 -> 10 -> 5, 28 -> 24 -> 12 -> 8 -> 4, 8 -> 4 -> 2 -> 2 (padded) -> 1
    ("cnn4", CIFAR, [conv(3, 32, 5), conv(32, 64, 5), dense(64 * 25, 512), dense(512, 10)]),
    ("cnn4", MNIST, [conv(1, 32, 5), conv(32, 64, 5), dense(64 * 16, 512), dense(512, 10)]),
    *(
        (f"fedproto:{c}", MNIST, [conv(1, 10, 5), conv(10, c, 5), dense(16 * c, 50), dense(50, 10)])
        for c in (18, 20, 22)
    ),
    ("fedproto:20", DIGITS, [conv(1, 10, 5), conv(10, 20, 5), dense(20, 50), dense(50, 10)]),
    # one, two and three convolutions: 32 -> 30 -> 15 -> 13 -> 6 -> 4 -> 2
    ("fedhenn:0", CIFAR, [conv(3, 16, 3), dense(16 * 225, 10)]),
    ("fedhenn:1", CIFAR, [conv(3, 16, 3), dense(16 * 225, 128), dense(128, 10)]),
    ("fedhenn:2", CIFAR, [conv(3, 16, 3), conv(16, 32, 3), dense(32 * 36, 128), dense(128, 10)]),
    ("fedhenn:3", CIFAR, [conv(3, 16, 3), conv(16, 32, 3), dense(32 * 36, 128), dense(128, 64), dense(64, 10)]),
    (
        "fedhenn:4",
        CIFAR,
        [conv(3, 16, 3), conv(16, 32, 3), conv(32, 64, 3), dense(64 * 4, 128), dense(128, 64), dense(64, 10)],
    ),
    # 28 -> 28 (same) -> 13 (3x3, stride 2)
    ("fedhe:0", MNIST, [conv(1, 128, 3) + NORM * 128, conv(128, 256, 3) + NORM * 256, dense(256 * 169, 10)]),
]
"""Networks, and the weights of each of their layers."""


class TestZoo:
    @pytest.mark.slow
    @pytest.mark.parametrize("spec", [DIGITS, MNIST, CIFAR], ids=["8x8", "28x28", "32x32"])
    @pytest.mark.parametrize("name", NAMES)
    def test_trains_splits_and_survives_a_state(self, name, spec):
        assert_is_a_model_of_the_zoo(name, spec)

    @pytest.mark.parametrize(("name", "spec", "layers"), LAYERS)
    def test_weights_are_counted_layer_by_layer(self, name, spec, layers):
        """Twenty clients of fedproto:20 send 436,800 weights in FedAvg: the 430 thousand of FedProto's Table 1."""
        assert parameter_count(build_model(name, spec, seed=0)) == sum(layers)
        assert name != "fedproto:20" or spec != MNIST or 20 * sum(layers) == 436_800

    def test_the_random_perceptrons_are_these_in_every_run(self):
        layouts = [
            tuple(layer.out_features for layer in build_model(name, TABLE, seed=0).body if isinstance(layer, nn.Linear))
            for name in TABULAR
        ]
        assert layouts == [
            *((120, 88, 76, 44), (28, 50), (74, 92, 16, 21), (65, 117), (63,)),
            *((77, 118), (22,), (60, 65, 120, 72), (43, 112, 117), (41, 114)),
        ]

    def test_each_convolution_is_pooled_and_rectified_and_linear_layers_too(self):
        """FedProto drops whole channels behind its second convolution, and nothing else."""
        block, dropped = [nn.Conv2d, nn.MaxPool2d, nn.ReLU], [nn.Conv2d, nn.Dropout2d, nn.MaxPool2d, nn.ReLU]
        end = [nn.Flatten, nn.Linear, nn.ReLU]
        for name, spec, kinds in (
            ("cnn1", CIFAR, [*block * 2, *end]),
            ("cnn2", CIFAR, [*block * 3, nn.Flatten]),
            ("tabular:1", TABLE, [*end, nn.Linear, nn.ReLU]),
            ("fedproto:20", MNIST, [*block, *dropped, *end]),
        ):
            body = build_model(name, spec, seed=0).body
            assert [type(layer) for layer in body] == kinds
        channels = body[:5](torch.ones(1, 1, 28, 28))[0].flatten(1).abs().sum(1)
        assert 0 < (channels == 0).sum() < 20

    @pytest.mark.parametrize(("shape", "published"), [((1, 28, 28), 324_672), ((3, 32, 32), 326_976)])
    def test_fedhe_9_has_the_weights_of_tables_iii_and_iv(self, shape, published):
        """The count holds running statistics, and a head of 20 outputs without bias."""
        state = build_model("fedhe:9", DataSpec(shape=shape, classes=20), seed=0, head_bias=False).state_dict()
        assert sum(array.numel() for name, array in state.items() if "num_batches" not in name) == published

    @pytest.mark.parametrize("name", NAMES)
    def test_without_bias_the_other_weights_are_the_same(self, name):
        whole = build_model(name, DIGITS, seed=0).state_dict()
        without = build_model(name, DIGITS, seed=0, head_bias=False).state_dict()
        assert whole.keys() - without.keys() == {"head.bias"}
        assert all(torch.equal(array, whole[key]) for key, array in without.items())

    def test_fedhe_first_pooling_keeps_the_size_and_averages_only_pixels(self):
        """Inside (1+2+3+4)/4, at the right edge (2+4)/2, at the bottom (3+4)/2, in the corner 4."""
        body = build_model("fedhe:5", MNIST, seed=0).body
        (pooling,) = (layer for layer in body.children() if isinstance(layer, nn.Sequential))
        image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        assert torch.equal(pooling(image), torch.tensor([[[[2.5, 3.0], [3.5, 4.0]]]]))

    def test_same_seed_and_scope_give_the_same_bits(self):
        before = torch.get_rng_state()
        weights = {
            key: nn.utils.parameters_to_vector(build_model("fedhe:5", DIGITS, seed=key[0], scope=key[1:]).parameters())
            for key in ((0, 1), (0, 2), (1, 1))
        }
        again = build_model("fedhe:5", DIGITS, seed=0, scope=(1,))
        assert torch.equal(weights[0, 1], nn.utils.parameters_to_vector(again.parameters()))
        assert not torch.equal(weights[0, 1], weights[0, 2])
        assert not torch.equal(weights[0, 1], weights[1, 1])
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("spec", [DIGITS, DataSpec(shape=(3, 12, 12), classes=10)])
    def test_convolutions_have_channels_last_in_memory_and_give_the_same(self, spec):
        model = build_model("lenet5", spec, seed=0)
        images, seen = torch.randn(5, *spec.shape), []
        model.body[3].register_forward_hook(lambda layer, inputs, output: seen.append((inputs[0], output)))
        logits = model(images)
        for maps in seen[0]:
            assert maps.is_contiguous(memory_format=torch.channels_last)
            assert not maps.is_contiguous()
        for layer in model.modules():
            layer._forward_pre_hooks.clear()
        torch.testing.assert_close(model(images), logits)
        assert not seen[1][1].is_contiguous(memory_format=torch.channels_last)
        assert all(parameter.is_contiguous() for parameter in model.parameters())


class TestNames:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            (" lenet5 ,mlp,\nfedhe:5, a.b:c", ("lenet5", "mlp", "fedhe:5", "a.b:c")),
            ("fedhe,mlp", (*FEDHE, "mlp")),
            ("mlp,tabular", ("mlp", *TABULAR)),
            *(("fedhenn", FEDHENN), ("fedproto", FEDPROTO), ("conv1d", SERIES)),
        ],
    )
    def test_they_are_parsed_and_dealt_by_turns(self, text, names):
        assert parse_models(text) == names
        assert [assign(text, client_id) for client_id in range(2 * len(names))] == [*names, *names]

    @pytest.mark.parametrize(
        ("name", "nearest"),
        [
            ("lenet-5", "lenet5"),
            ("fedhe:10", "fedhe:1"),
            ("fedhe:x", "fedhe:"),
            ("tabular:10", "tabular:1"),
            ("fedproto:19", "fedproto:18"),
            ("mlp\nx", "mlp"),
            ("a b:c", ""),
        ],
    )
    def test_an_unknown_one_names_the_nearest_and_no_name_is_refused(self, refusal, name, nearest):
        assert f"'{nearest}" in refusal(ModelError, parse_models, f"mlp,{name}") or not nearest
        for text in ("", "mlp,,lenet5", "mlp,\n"):
            refusal(ConfigError, parse_models, text)
        for family in ("fedhe", "fedhenn", "fedproto", "tabular"):
            assert f"'{family}'" in refusal(ModelError, build_model, family, MNIST, seed=0)


class TestWidth:
    @pytest.mark.parametrize("name", ["mlp", "lenet5", "fedhe:5", "tabular:3"])
    def test_a_model_of_another_width_gets_a_projection(self, name):
        """Linear from the own width and ReLU; the body's weights are those of the model with its own width."""
        own, model = build_model(name, DIGITS, seed=3), build_model(name, DIGITS, seed=3, width=12)
        assert (model.width, model.head.weight.shape, model.training) == (12, (10, 12), True)
        body, linear, relu = model.body
        assert isinstance(relu, nn.ReLU)
        assert (linear.in_features, linear.out_features) == (own.width, 12)
        for key, weight in own.body.state_dict().items():
            assert torch.equal(body.state_dict()[key], weight)
        features = own.eval().body(samples(DIGITS))
        expected = functional.relu(functional.linear(features, linear.weight, linear.bias))
        assert torch.equal(model.eval().body(samples(DIGITS)), expected)
        assert (expected > 0).any()
        assert parameter_count(model) == parameter_count(own.body) + (own.width * 12 + 12) + (12 * 10 + 10)

    @pytest.mark.parametrize("width", [0, 84])
    def test_0_and_the_own_width_leave_a_model_as_it_is(self, width):
        own, model = build_model("lenet5", DIGITS, seed=3), build_model("lenet5", DIGITS, seed=3, width=width)
        assert model.state_dict().keys() == own.state_dict().keys()
        assert torch.equal(model(samples(DIGITS)), own(samples(DIGITS)))

    @pytest.mark.parametrize(("name", "width"), [("mlp", 50), ("fedhe:5", 64), ("lenet5", 168)])
    def test_pooling_averages_neighbouring_features_or_repeats_them_and_learns_nothing(self, name, width):
        """200 features to 50, and 256 to 64: the mean of each four. 84 features to 168: each of them twice."""
        own, model = (build_model(name, DIGITS, seed=3, width=size, width_by="pool") for size in (0, width))
        assert (model.width, model.head.weight.shape, model.training) == (width, (10, width), True)
        assert parameter_count(model) == parameter_count(own.body) + (width * 10 + 10)
        features, pooled = (each.eval().body(samples(DIGITS)) for each in (own, model))
        few = own.width < width
        expected = features.repeat_interleave(2, 1) if few else features.unflatten(1, (width, 4)).mean(2)
        torch.testing.assert_close(pooled, expected)

    def test_the_server_builds_what_a_client_builds(self):
        keys = {"width": 12, "width_by": "pool", "stem": "imagenet"}
        client = build_model("resnet4", CIFAR, seed=0, **keys).state_dict()
        server = build_model("resnet4", CIFAR, seed=0, bounded=True, **keys).state_dict()
        assert all(torch.equal(tensor, server[key]) for key, tensor in client.items())


class Net(nn.Module):
    """A module with a forward of its own; a step may follow its head, or its head be registered first."""

    def __init__(self, after: type[nn.Module] = nn.Identity, head_first: bool = False) -> None:
        super().__init__()
        if head_first:
            self.out = nn.Linear(5, 10)
        self.hidden = nn.Linear(64, 5)
        if not head_first:
            self.out = nn.Linear(5, 10)
        self.drop = nn.Dropout(0.5)
        self.after = after()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.after(self.out(self.drop(functional.relu(self.hidden(x.flatten(1))))))
        return logits


class TestSplit:
    def test_keeps_forward_and_leaves_the_original(self):
        net = Net()
        model = split(net, spec=DIGITS)
        assert (model.width, model.classes) == (5, 10)
        assert net.training
        assert model.training
        assert torch.equal(model.eval()(samples(DIGITS)), net.eval()(samples(DIGITS)))
        nn.init.zeros_(model.head.weight)
        assert net.out.weight.any()

    def test_a_head_must_be_one_layer_computed_last_not_registered_last(self, refusal):
        net = Net(head_first=True)
        assert "'hidden'" in refusal(ModelError, split, net, spec=DIGITS)
        assert split(net, "out", spec=DIGITS).width == 5
        assert "'out'" in refusal(ModelError, split, Net(after=nn.ReLU), spec=DIGITS)
        several = nn.Sequential(nn.Dropout(), nn.Linear(64, 10))
        assert "Sequential" in refusal(ModelError, SplitModel, nn.Flatten(), several)

    def test_a_linear_alone_has_the_inputs_as_features(self):
        linear = nn.Linear(30, 2)
        model = split(linear, spec=TABLE)
        assert torch.equal(model(samples(TABLE)), linear(samples(TABLE)))
        assert torch.equal(model.body(samples(TABLE)), samples(TABLE))


OWN = """
import torch
from torch import nn
from hetfl_flwr.models import SplitModel

number = 3

def plain(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, spec.classes))

def ready(spec):
    return SplitModel(nn.Flatten(), nn.Linear(64, spec.classes))

def nothing(spec):
    return None

def raises(spec):
    raise RuntimeError("first line\\nsecond line")

def few_classes(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))

def other_shape(spec):
    return SplitModel(nn.Flatten(), nn.Linear(65, spec.classes))

class Pair(nn.Linear):
    def forward(self, x):
        return x, x

def pair(spec):
    return Pair(64, spec.classes)

class Squeezed(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)).squeeze()

def squeezed(spec):
    return Squeezed(64, spec.classes)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of an importable module of a user's own models, and beside it one that does not import."""
    (tmp_path / "own_models.py").write_text(OWN)
    (tmp_path / "broken_models.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_models"
    sys.modules.pop("own_models", None)


@pytest.mark.usefixtures("own")
class TestOwnModel:
    @pytest.mark.parametrize(("function", "width"), [("plain", 5), ("ready", 64)])
    def test_builds(self, function, width):
        before = torch.get_rng_state()
        model, again = (build_model(f"own_models:{function}", DIGITS, seed=4) for _ in range(2))
        assert isinstance(model, SplitModel)
        assert (model.width, model.classes, model.training) == (width, 10, True)
        assert torch.equal(model(samples(DIGITS)), again(samples(DIGITS)))
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("absent_models:plain", "ModuleNotFoundError"),
            ("broken_models:plain", "ZeroDivisionError"),
            ("own_models:plian", "'plain'"),
            ("own_models:number", "int"),
            ("own_models:nothing", "NoneType"),
            ("own_models:raises", "RuntimeError: first line"),
            ("own_models:few_classes", "(2, 4)"),
            ("own_models:other_shape", "(2, 1, 8, 8)"),
            ("own_models:pair", "tuple"),
            ("own_models:squeezed", "Squeezed gives (10,)"),  # the dimension of a batch of one is lost, too
        ],
    )
    def test_says_what_is_wrong(self, refusal, name, reason):
        line = refusal(ModelError, build_model, name, DIGITS, seed=0)
        assert (f"'{name}'" in line, "(1, 8, 8)" in line, reason in line) == (True, True, True)
