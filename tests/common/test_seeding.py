import random

import numpy as np
import pytest
import torch

from hetfl_flwr.seeding import generator, generators_lent, seeded


def draws(*scope):
    return generator(*scope).integers(2**63, size=4).tolist()


def test_equal_scopes_give_equal_streams_and_any_other_part_gives_another():
    scopes = [
        (0, 1, 2, "batches"),
        (1, 1, 2, "batches"),  # seed
        (0, 2, 2, "batches"),  # partition
        (0, 2, 1, "batches"),  # order of the parts
        (0, 1, 2, "draw"),  # purpose
        (0, 1, 2),  # fewer parts
        (0, 1, 2, "batches", 0),  # a trailing zero, which SeedSequence alone would overlook
    ]
    assert draws(*scopes[0]) == draws(*scopes[0])
    assert len({tuple(draws(*scope)) for scope in scopes}) == len(scopes)


def test_the_streams_are_the_same_in_every_process():
    """Words are mixed in by CRC-32, not by hash(), which Python salts for each process: crc32("a") = 0xe8b7be43."""
    expected = np.random.default_rng(np.random.SeedSequence([5, 2, 3, 0xE8B7BE43]))
    assert generator(5, 3, "a").random() == expected.random()


@pytest.mark.parametrize("draw", [random.random, np.random.random, lambda: float(torch.rand(()))])
def test_all_global_generators_are_seeded_and_put_back(draw):
    def drawn(seed):
        with seeded(seed, 1, "train"):
            return draw()

    draw()
    before = random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()  # noqa: NPY002
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    after = random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()  # noqa: NPY002
    assert after == before


def test_generators_that_are_lent_are_seeded_alike_and_put_back_at_the_end():
    """Also where a seeded body seeds them again: the outer one goes on as if it had not."""

    def drawn():
        found = []
        for number in (1, 2):
            with seeded(number, "outer"):
                found.append((random.random(), np.random.random(), torch.rand(()).item()))  # noqa: NPY002
                with seeded(3, "inner"):
                    torch.rand(2), np.random.random(), random.random()  # noqa: NPY002
                found.append((random.random(), np.random.random(), torch.rand(()).item()))  # noqa: NPY002
        return found

    alone = drawn()
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    with generators_lent():
        lent = drawn()
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert lent == alone
    assert after == before
