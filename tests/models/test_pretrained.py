"""Weights trained on ImageNet: where they are looked for, which models take them, and what is wrong with a file."""

import pytest
import torch
import torchvision
from fixtures.federations.members import roster
from fixtures.zoo import samples
from safetensors.torch import save_file
from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ConfigError, ModelError
from hetfl_flwr.models import build_model, check_pretrained, trainable_count
from hetfl_flwr.seeding import seeded
from hetfl_flwr.server.global_model import global_model
from hetfl_flwr.wire.weights import fingerprint

NAME = "mobilenet_v3_small"
COLOUR = DataSpec(shape=(3, 64, 64), classes=7)
GRAY = DataSpec(shape=(1, 64, 64), classes=7)
IMAGENET = DataSpec(shape=(3, 64, 64), classes=1000)


def network(name: str, classes: int = 1000) -> nn.Module:
    """Return a network of torchvision whose running statistics are not those of a new one."""
    with seeded(5):
        module = torchvision.models.get_model(name, num_classes=classes)
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.normal_(layer.running_mean, std=0.1)
    return module.eval()


@pytest.fixture(scope="module")
def own():
    return network(NAME)


@pytest.fixture
def folder(tmp_path, own):
    torch.save(own.state_dict(), tmp_path / f"{NAME}.pth")
    return str(tmp_path)


@pytest.mark.slow
def test_a_network_with_all_its_weights_is_torchvision_s(folder, own):
    model = build_model(NAME, IMAGENET, seed=0, pretrained=folder).eval()
    torch.testing.assert_close(model(samples(IMAGENET)), own(samples(IMAGENET)))  # their layouts in memory differ


def test_with_other_classes_the_head_alone_is_random(folder, own):
    random, model = (build_model(NAME, COLOUR, seed=0, pretrained=source) for source in ("", folder))
    body = own.state_dict()
    assert model.training
    assert all(torch.equal(tensor, body[name]) for name, tensor in model.body.state_dict().items())
    assert torch.equal(model.head.weight, random.head.weight)
    assert torch.equal(model.head.bias, random.head.bias)
    assert not torch.equal(model.body.features[0][0].weight, random.body.features[0][0].weight)


@pytest.mark.slow
def test_gray_images_give_what_three_equal_colours_give(folder):
    gray, colour = (build_model(NAME, spec, seed=0, pretrained=folder) for spec in (GRAY, COLOUR))
    image = samples(GRAY)
    once, thrice = gray.body.features[0][0](image), colour.body.features[0][0](image.expand(-1, 3, -1, -1))
    torch.testing.assert_close(once, thrice)
    assert once.std() > 0.1


def test_torchvision_s_own_files_and_the_hub_s_cache_are_found(tmp_path, monkeypatch, own):
    """Files of older torchvision, and of the hub, do not count the batches of batch norm."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (checkpoints := tmp_path / "torch" / "hub" / "checkpoints").mkdir(parents=True)
    url = torchvision.models.MobileNet_V3_Small_Weights.IMAGENET1K_V1.url
    torch.save(own.state_dict(), checkpoints / url.rpartition("/")[2])
    model = build_model(NAME, COLOUR, seed=0, pretrained="torchvision")
    assert torch.equal(model.body.features[0][0].weight, own.features[0][0].weight)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repository, resnet = tmp_path / "hub" / "models--timm--resnet18.tv_in1k", network("resnet18")
    weights = {name: tensor for name, tensor in resnet.state_dict().items() if not name.endswith("batches_tracked")}
    for folder in ("refs", "snapshots/abc"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    save_file(weights, repository / "snapshots" / "abc" / "model.safetensors")
    model = build_model("resnet18", COLOUR, seed=0, pretrained="hub")
    assert torch.equal(model.body.layer4[1].conv2.weight, resnet.layer4[1].conv2.weight)
    assert torch.equal(model.body.bn1.running_mean, resnet.bn1.running_mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (lambda own: {"state_dict": own.state_dict()}, "state dict"),
        (lambda own: [1, 2], "state dict"),
        (lambda own: own, "UnpicklingError"),
        (lambda own: network("mobilenet_v3_large").state_dict(), "'classifier.0.bias' is (1280,)"),
        (lambda own: {}, "'classifier.0.bias' is absent"),
        (lambda own: {**own.state_dict(), "extra": torch.ones(1)}, "'extra' is (1,)"),
    ],
    ids=["checkpoint", "list", "code", "other network", "empty", "too much"],
)
def test_a_file_of_another_kind_is_refused(refusal, tmp_path, own, weights, said):
    file = tmp_path / f"{NAME}.pth"
    torch.save(weights(own), file)
    line = refusal(ModelError, build_model, NAME, COLOUR, seed=0, pretrained=str(tmp_path))
    assert f"{file}" in line
    assert said in line


def test_the_run_config_s_key_reaches_the_models_of_a_node(refusal, make_config, make_node, tmp_path):
    """Digits are small images, so a network that is to take weights refuses them; another one on the node does not."""
    source = str(tmp_path)
    none = refusal(ConfigError, make_node, make_config(models="lenet5,mlp", pretrained=source), 0)
    assert "lenet5,mlp" in none
    check_pretrained("lenet5,resnet18")
    config = make_config(models=f"{NAME},lenet5", pretrained=source)
    assert "image-size=64" in refusal(ModelError, make_node, config, 0)
    assert make_node(config, 1).model_name == "lenet5"
    assert make_node(config, 0, model="mlp").model_name == "mlp"
    assert make_node(config, 0, pretrained="").model_name == NAME


def test_a_global_model_begins_with_them_as_well(make_config, folder, own):
    config = make_config(algorithm="fedavg", models=NAME, pretrained=folder)
    built = build_model(NAME, COLOUR, seed=0)
    registered = {"weights": fingerprint(built), "parameters": trainable_count(built)}
    clients = roster(2, model=NAME, shape=COLOUR.shape, classes=COLOUR.classes, **registered)
    first = global_model(clients, config)
    assert torch.equal(first.body.features[0][0].weight, own.features[0][0].weight)
