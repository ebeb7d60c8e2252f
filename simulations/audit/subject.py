"""The client under attack: its downloads and uploads, the attacker's data, and the ground truth."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_flwr.client import KnowledgeClient
from hetfl_flwr.common.notices import option
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import Samples
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.methods import build_client
from hetfl_flwr.models import SplitModel
from hetfl_flwr.node.holder import Holder
from hetfl_flwr.node.node import Node
from hetfl_flwr.runs.record import read_summary
from hetfl_flwr.runs.uploads import KeptUpload, kept_uploads
from hetfl_flwr.seeding import generator
from simulations.inference.loading import load_client, load_deployed, run_config

MAX_ROWS = 10_000
"""Maximum number of samples of the attacker, and of each split of the client."""

Predictor = Callable[[Tensor], Tensor]
"""Maps inputs (B, *shape) to logits (B, C)."""


class Rows(NamedTuple):
    """Samples as model inputs (N, *shape) and labels (N,), int64."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def some(self, rows: NDArray[np.int64]) -> "Rows":
        """Return the samples at the given positions."""
        chosen = torch.from_numpy(rows).to(self.labels.device)
        return Rows(self.inputs[chosen], self.labels[chosen])


@dataclass(frozen=True)
class Subject:
    """A client under attack.

    Parameters
    ----------
    config : RunConfig
        The config of the run, which the server knows.
    client_id, classes : int
        The client, and C.
    model : SplitModel
        Its model after its last round of training, in evaluation mode. Attacks that use it say so.
    client : KnowledgeClient
        A new instance of its side of the algorithm, for the form of its payloads.
    kept : tuple of KeptUpload
        Its downloads and uploads, in order; at least one.
    samples : Samples
        Ground truth: all its training samples, the public ones first.
    trained_on : Rows
        The first of them, up to `MAX_ROWS`.
    members, strangers : Rows
        Ground truth of membership: its private training samples, and its test samples. Test samples that are not drawn
        from the client's own data are subsampled to the class shares of the members.
    counts : array
        Ground truth of its class histogram: training samples of each class, (C,).
    known : Rows
        The attacker's samples of the same distribution: training samples of the other clients.
    public : Rows
        The public samples of all clients, in the order of their numbers.
    public_start : int or None
        Number of the client's first public sample; None if the data of some clients are missing.
    centre : Tensor
        Added to inputs, it gives pixels in [0, 1]: (*shape). Empty if the inputs are not images.
    """

    config: RunConfig
    client_id: int
    classes: int
    model: SplitModel
    client: KnowledgeClient
    kept: tuple[KeptUpload, ...]
    samples: Samples
    trained_on: Rows
    members: Rows
    strangers: Rows
    counts: NDArray[np.int64]
    known: Rows
    public: Rows
    public_start: int | None
    centre: Tensor

    @property
    def last(self) -> KeptUpload:
        """The last upload, which is attacked."""
        return self.kept[-1]

    @cached_property
    def to_train(self) -> Rows:
        """The half of `known` that the attacker trains on, if it evaluates its models on the other half."""
        return self.known.some(np.arange(0, len(self.known), 2))

    @cached_property
    def to_ask(self) -> Rows:
        """The half of `known` that the attacker's models are evaluated on; all if there is one sample."""
        return self.known.some(np.arange(min(1, len(self.known) - 1), len(self.known), 2))

    def rng(self, *scope: int | str) -> np.random.Generator:
        """Return the attacker's generator for one purpose."""
        return generator(self.config.seed, self.client_id, "audit", *scope)

    def forward_of(self, model: SplitModel) -> Predictor:
        """Return the forward pass of a model whose weights are as in payloads, as the method defines it."""
        return self.client.forward_of(model, self.last.download)

    def picture(self, inputs: Tensor) -> NDArray[np.float64]:
        """Return inputs (..., *shape) as pixels in [0, 1]."""
        pixels: NDArray[np.float64] = (inputs + self.centre).clamp(0, 1).detach().cpu().double().numpy()
        return pixels


def uploads_of(folder: Path) -> list[KeptUpload]:
    """Return the kept uploads of a run.

    Raises a `RunFolderError` that names the config key if there are none.
    """
    config, kept = run_config(folder), list(kept_uploads(folder))
    if not kept:
        how = "keep-uploads = true, and no round has ended" if config.keep_uploads else "keep-uploads = false"
        keeping = option("--set keep-uploads=true", "keep_uploads=True")
        raise RunFolderError(f"{folder} has no uploads to audit ({how}): run it with {keeping}")
    return kept


def is_deployment(folder: Path) -> bool:
    """Return whether the data of a run are on nodes."""
    summary = read_summary(folder)
    return summary is not None and summary["engine"] == "deployment"


def subjects_of(
    folder: Path, device: str = "cpu", most: int = 0, places: Mapping[int, Path] | None = None
) -> list[Subject]:
    """Return the clients of a run that uploaded something, by client id.

    `most` limits the number of clients; 0: all. `places` gives, for a deployment, each client's state-dir or data;
    clients without an entry are left out, with their data. Raises a `RunFolderError` if the run, its uploads, data or
    checkpoint are missing, and a `ConfigError` for fewer than two clients, an unknown one, or clients that all share
    the same samples.
    """
    kept = uploads_of(folder)
    config = run_config(folder).with_values({"device": device, "state-dir": ""})
    deployed = is_deployment(folder)
    if places and not deployed:
        raise ConfigError(
            f"{option('--node', 'nodes')}: {folder} is not a deployment; its data are where its config says"
        )
    if beyond := [client for client in places or () if not 0 <= client < config.clients]:
        raise ConfigError(f"{option('--node', 'nodes:')} {beyond[0]}: {folder} has clients 0 .. {config.clients - 1}")
    there = sorted(places or ()) if deployed else list(range(config.clients))
    if config.partition == "all":
        raise ConfigError(f"{folder}: partition = all: the attacker's samples would be the client's samples")
    if len(there) < 2:
        raise ConfigError(
            f"{folder}: the attacker's samples are those of other clients, so the data of at least two are needed, "
            f"not of {len(there)}"
        )
    nodes = [load_deployed(folder, one, places[one]) if places else load_client(folder, one) for one in there]
    for node in nodes:
        Holder(build_client(node.config, node)).restore()  # its last round, where keep-best has left the best one
        node.model.to(device)
    by_client = {node.client_id: tuple(one for one in kept if one.client_id == node.client_id) for node in nodes}
    chosen = [node for node in nodes if by_client[node.client_id]][: most or None]
    return [_subject(node, nodes, by_client[node.client_id], whole=len(nodes) == config.clients) for node in chosen]


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate samples; at least one part."""
    return Rows(*map(torch.cat, zip(*parts, strict=True)))


def in_shares_of(members: Rows, strangers: Rows) -> Rows:
    """Subsample strangers to the class shares of the members.

    The first strangers of each class are kept, as many as the scarcest class that both have allows; classes that the
    members lack are dropped.

    Examples
    --------
    >>> members, strangers = (Rows(torch.zeros(len(of), 1), torch.tensor(of)) for of in ([0, 0, 2], [2, 0, 1, 2, 0]))
    >>> in_shares_of(members, strangers).labels.tolist()
    [2, 0, 0]
    """
    classes = int(torch.cat([members.labels, strangers.labels]).max()) + 1
    own, others = (torch.bincount(rows.labels, minlength=classes).cpu().numpy() for rows in (members, strangers))
    both = (own > 0) & (others > 0)
    part = float((others[both] / own[both]).min()) if both.any() else 0.0
    labels = strangers.labels.cpu().numpy()
    kept = [np.flatnonzero(labels == one)[: int(part * own[one] + 0.5)] for one in range(classes)]
    return strangers.some(np.sort(np.concatenate(kept)))


def _subject(node: Node, nodes: Sequence[Node], kept: tuple[KeptUpload, ...], *, whole: bool) -> Subject:
    data, spec, device = node.data, node.data.spec, node.model.head.weight.device

    def there(samples: Samples) -> Rows:
        inputs, labels = samples.batch(torch.arange(min(len(samples), MAX_ROWS)))
        return Rows(inputs.to(device), labels.to(device))

    same = [one for one in nodes if one.client_id != node.client_id and one.data.spec == spec]
    if not same:
        raise ConfigError(f"client {node.client_id}: no other client has data of this form, so the attacker has none")
    known = joined([there(one.data.train) for one in same])
    order = generator(node.config.seed, node.client_id, "audit", "known").permutation(len(known))[:MAX_ROWS]
    members, strangers = there(data.private), there(data.test)
    client = build_client(node.config, replace(node, model=deepcopy(node.model)))  # it may reinitialize the head
    if node.config.test_set == "global" or node.config.iid_evaluation:
        strangers = in_shares_of(members, strangers)
    return Subject(
        config=node.config,
        client_id=node.client_id,
        classes=spec.classes,
        model=node.model.eval(),
        client=client,
        kept=kept,
        samples=data.train.to(device),
        trained_on=there(data.train),
        members=members,
        strangers=strangers,
        counts=data.train.class_counts(spec.classes).cpu().numpy(),
        known=known.some(order),
        public=joined([there(one.data.public) for one in nodes if one.data.spec == spec]),
        public_start=sum(one.data.public_rows for one in nodes if one.client_id < node.client_id) if whole else None,
        centre=data.train.arrays.centre.to(device) if spec.kind == "image" else torch.zeros(0),
    )
