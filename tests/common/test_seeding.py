import random

import numpy as np
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


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def drawn():
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002


def nested(seed):
    """Draw under two seeds, one after the other, and in each of them under a third."""
    found = []
    for number in (seed, seed + 1):
        with seeded(number, "outer"):
            found.append(drawn())
            with seeded(seed + 2, "inner"):
                drawn()
            found.append(drawn())
    return np.array(found)


def test_all_global_generators_are_seeded_and_put_back_also_where_they_are_lent():
    """Where a seeded body seeds them again, the outer one goes on as if it had not."""
    drawn()
    before = states()
    alone = nested(3)
    assert (alone == nested(3)).all()
    assert (alone != nested(7)).all()
    assert states() == before
    with generators_lent():
        lent = nested(3)
    assert (lent == alone).all()
    assert states() == before
