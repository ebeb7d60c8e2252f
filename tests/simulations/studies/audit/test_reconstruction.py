"""Pictures: found to the pixel where the network hides nothing, and no better than a guess where it says nothing."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from simulations.studies.audit import reconstruction
from simulations.studies.audit.measures import psnr
from simulations.studies.audit.reconstruction import invert_gradient, invert_outputs, matched

CENTRE = torch.full((1, 8, 8), 0.3)


def smooth_pictures(number: int) -> torch.Tensor:
    """Pictures in [0, 1] with edges, (N, 1, 8, 8)."""
    pictures = torch.zeros(number, 1, 8, 8)
    for one in range(number):
        pictures[one, 0, one : one + 4, 2:6] = 1.0
    return pictures


def likeness(found: torch.Tensor, pictures: torch.Tensor) -> float:
    return float(np.mean([psnr(a, b) for a, b in zip((found + CENTRE).numpy(), pictures.numpy(), strict=True)]))


def test_the_outputs_of_an_identity_are_the_pictures():
    pictures = smooth_pictures(3)
    found = invert_outputs(nn.Flatten(), (pictures - CENTRE).flatten(1), CENTRE, smooth=0.0)
    assert likeness(found, pictures) > 35


def test_outputs_that_are_noise_give_no_pictures():
    """A flat picture of the pixels' mean is as like: PSNR of about 7 dB."""
    pictures = smooth_pictures(3)
    noise = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    found = invert_outputs(nn.Flatten(), noise, CENTRE, smooth=0.0)
    flat = pictures.mean().expand_as(pictures) - CENTRE
    assert likeness(found, pictures) < likeness(flat, pictures)


@pytest.mark.parametrize("known", [True, False])
def test_the_gradient_of_one_sample_is_that_sample_and_noise_is_none(known, monkeypatch):
    monkeypatch.setattr(reconstruction, "STARTS", 2)
    monkeypatch.setattr(reconstruction, "LONG", 300)
    torch.manual_seed(0)
    model, pictures = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), smooth_pictures(1)
    labels = torch.tensor([3])
    loss = functional.cross_entropy(model(pictures - CENTRE), labels)
    gradient = [one.detach() for one in torch.autograd.grad(loss, list(model.parameters()))]
    if not known:
        gradient = [torch.randn_like(one) for one in gradient]
    found = invert_gradient(model, [*model.parameters()], gradient, labels, CENTRE, smooth=0.0)
    assert (likeness(found, pictures) > 30) == known


def test_each_picture_is_set_beside_its_own():
    pictures = np.random.default_rng(0).random((4, 1, 8, 8))
    assert (matched(pictures[[2, 0, 3, 1]], pictures) == pictures).all()
