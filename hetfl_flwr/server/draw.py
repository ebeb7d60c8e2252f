"""Which of the clients train in a round."""

from collections.abc import Iterable

from hetfl_flwr.config import RunConfig, idle_clients, sampled_clients
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.member import Member


def draw(members: Iterable[Member], config: RunConfig, clients: int, round: int) -> list[Member]:
    """Draw the clients of a round: ``fraction`` of those that may train, rounded up, by the run's own generator.

    Parameters
    ----------
    members : iterable of Member
        All clients that are here.
    config : RunConfig
        The run.
    clients : int
        How many clients the federation has, whether they are here or not: the same in all rounds.
    round : int
        The round, from 1.
    """
    trainable = _trainable(list(members), config, clients)
    count = sampled_clients(config.fraction, len(trainable))
    if count == len(trainable):
        return trainable
    chosen = generator(config.seed, round, "draw").choice(len(trainable), count, replace=False)
    return [trainable[index] for index in sorted(chosen)]


def draw_to_evaluate(members: Iterable[Member], config: RunConfig, round: int) -> list[Member]:
    """Draw the clients that are evaluated after a round: ``evaluate-fraction`` of all, rounded up; of the last, all.

    Parameters
    ----------
    members : iterable of Member
        All clients that are here.
    config : RunConfig
        The run.
    round : int
        The round; 0: before any training.
    """
    here = list(members)
    count = sampled_clients(config.evaluate_fraction, len(here))
    if round == config.rounds or count == len(here):
        return here
    chosen = generator(config.seed, round, "evaluate").choice(len(here), count, replace=False)
    return [here[index] for index in sorted(chosen)]


def _trainable(members: list[Member], config: RunConfig, clients: int) -> list[Member]:
    """Return those that may train: all but ``nonparticipating-fraction``, rounded, of the clients."""
    if not config.nonparticipating_fraction:
        return members
    absent = generator(config.seed, "absent").permutation(clients)
    idle = set(absent[: idle_clients(config.nonparticipating_fraction, clients)].tolist())
    return [member for member in members if member.client_id not in idle]
