"""One run on disk: config, rounds, summary, clients and the server state."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message

from hetfl_flwr.algorithms import for_flower
from hetfl_flwr.config import RunConfig, read_toml, to_toml
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.files import replace_file
from hetfl_flwr.learning.metrics import mean, weighted_mean
from hetfl_flwr.runs.checkpoint import CHANGEABLE, Checkpoint, Choice, checkpoints, config_digest, pack, remove
from hetfl_flwr.runs.lock import FolderLock
from hetfl_flwr.runs.notices import warn
from hetfl_flwr.runs.schema import (
    CHECKPOINTS,
    CLIENTS_FILE,
    CONFIG_FILE,
    RESUME_FILE,
    ROUNDS_FILE,
    SERVER_STATE_FILE,
    SUMMARY_FILE,
    UPLOADS_FILE,
    ClientRecord,
    Round,
    Summary,
    clients_file,
    read_rounds,
    round_line,
    summary_file,
)
from hetfl_flwr.server.exchange import Traffic
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.roster import Member
from hetfl_flwr.server.rounds import Played
from hetfl_flwr.server.under_way import UnderWay
from hetfl_flwr.server.uploads import Uploads
from hetfl_flwr.versions import installed
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import EXAMPLES, METRICS
from hetfl_flwr.wire.naming import OWN
from hetfl_flwr.wire.privacy import epsilon, noise_source


class Results:
    """What a run has reached so far, in memory and in its folder.

    Parameters
    ----------
    folder : Path
        The run folder, made if missing.
    config : RunConfig
        The run. With ``resume`` the folder must hold a checkpoint, else it must hold no run.
    engine : str
        ``local``, ``simulation`` or ``deployment``.
    run : int
        The run's id.

    Attributes
    ----------
    uploads : Uploads
        How many uploads each client has made.
    noise : str or None
        What noise on uploads is drawn from, ``seed`` or ``system``; None without noise.

    Raises
    ------
    RunFolderError
        The folder cannot be written, is being written by another process, holds another run, or has nothing to resume.
    """

    def __init__(self, folder: Path, config: RunConfig, engine: str, run: int) -> None:
        self.folder = folder
        self.config = config
        self.engine = engine
        self.rounds: list[Round] = []
        self._lines: dict[int, str] = {}
        self._traffic: dict[int, Traffic] = {}
        self._latest: dict[int, dict[str, float]] = {}
        self._samples: dict[int, int] = {}
        self._members: dict[int, Member] = {}
        self.noise = noise_source(config.noise_source, engine) if config.noise_multiplier > 0 else None
        lasting = config.noise_multiplier > 0 and (self.noise == "system" or engine != "local")
        self.uploads = Uploads(folder / UPLOADS_FILE if lasting else None)
        if config.resume:
            _check_holds_run(folder)
        written = *(folder / name for name in (CONFIG_FILE, RESUME_FILE, ROUNDS_FILE)), folder, *folder.parents
        self._made = [path for path in written if not path.exists()]
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(folder, run)
        try:
            self._check_free()
            self._begin()
        except BaseException:
            self.release()
            raise

    def _check_free(self) -> None:
        """Refuse to begin where a run is, or to go on with another one."""
        folder, config = self.folder, self.config
        if config.resume:
            _check_holds_run(folder)
            check_unchanged(folder, config)
        elif _holds_run(folder):
            raise RunFolderError(f"{folder} already holds a run: go on with it by --resume, or name another folder")
        elif found := checkpoints(folder):
            raise RunFolderError(
                f"{found[0]} is of an earlier run, whose {ROUNDS_FILE} is gone: delete {folder / CHECKPOINTS} to begin "
                "again, or name another folder"
            )

    def _begin(self) -> None:
        folder, config = self.folder, self.config
        with self._writing():
            kept = config.with_values({"resume": False, "accept-loss": False, "output-dir": ""})
            replace_file(folder / CONFIG_FILE, to_toml(kept.to_flat()).encode())
            if self.engine != "local":  # `flwr run` takes values or a file, not both
                going_on = kept.with_values({"resume": True, "output-dir": str(folder)})
                replace_file(folder / RESUME_FILE, to_toml(for_flower(going_on)).encode())
            if not config.resume:
                (folder / UPLOADS_FILE).unlink(missing_ok=True)
            (folder / ROUNDS_FILE).touch()

    def release(self) -> None:
        """Let other processes write the folder."""
        self._lock.release()

    def add(self, round: int, seconds: float, played: Played, federation: Federation) -> Round:
        """Write a round down."""
        roster, trained, evaluated = federation.roster, played.trained, played.evaluated
        self._members |= {member.client_id: member for member in roster}
        entry = Round.blank(round, round_seconds(seconds))
        if self.config.client_seconds:
            entry.clock = getattr(federation.grid, "clock", None)
        measured = {roster.of(reply.metadata.src_node_id).client_id: _metrics(reply) for reply in evaluated.replies}
        self._samples |= {client: int(values.pop(EXAMPLES)) for client, values in measured.items()}
        entry.clients = {str(client): dict(values) for client, values in measured.items()}
        if measured:
            self._latest = {**self._latest, **measured} if played.carry else measured
            self._average(entry)
        for reply in trained.replies:
            client = str(roster.of(reply.metadata.src_node_id).client_id)
            entry.clients.setdefault(client, {}).update(
                {key: value for key, value in _metrics(reply).items() if key != EXAMPLES}
            )
        for client_id, traffic in trained.traffic.items():
            self._traffic.setdefault(client_id, Traffic()).add(traffic)
        total = _total(trained.traffic.values())
        entry.numbers_up, entry.numbers_down = total.numbers_up, total.numbers_down
        entry.bytes_up, entry.bytes_down = total.bytes_up, total.bytes_down
        entry.wire_up, entry.wire_down = total.wire_up, total.wire_down
        evaluation = _total(evaluated.traffic.values())
        entry.evaluation_wire = evaluation.wire_up + evaluation.wire_down
        entry.failures = [*played.left_out, *trained.failures, *evaluated.failures]
        self.rounds.append(entry)
        line = round_line(entry)
        self._lines[round] = _digest(line)
        with self._writing(), (self.folder / ROUNDS_FILE).open("ab") as file:
            file.write(line + b"\n")
        return entry

    def _average(self, entry: Round) -> None:
        """Fill in the means over clients of what was measured last."""
        for name in ("accuracy", "validation_accuracy", "acc", "fwt"):
            setattr(entry, name, mean(self._measured(name).values()))
        if entry.fwt is not None:
            entry.bwt = entry.accuracy  # the accuracy on each client's own domain
        entry.global_accuracy = weighted_mean(self._measured("global_accuracy"), self._samples)

    def _measured(self, name: str) -> dict[int, float]:
        key = name.replace("_", "-")
        return {client: values[key] for client, values in self._latest.items() if key in values}

    def checkpoint(
        self, round: int, arrays: ArrayRecord, run: int, federation: Federation, under_way: UnderWay
    ) -> None:
        """Write what ``resume`` needs, and summary, clients and current server state."""
        counts = {
            "traffic": {client: asdict(traffic) for client, traffic in self._traffic.items()},
            "latest": self._latest,
            "samples": self._samples,
            "uploads": self.uploads.counts,
            "sizes": federation.guard.counts(),
            "claims": federation.claims_guard.counts(),
            "tests": federation.tests_guard.counts(),
            "lines": self._lines,
        }
        digest, trained = config_digest(self.config), federation.trained
        checkpoint = Checkpoint(round, run, digest, counts, trained, from_record(arrays), under_way)
        with self._writing():
            with (self.folder / ROUNDS_FILE).open("a") as file:
                os.fsync(file.fileno())  # no checkpoint is ahead of the rounds that led to it
            checkpoint.write(self.folder, federation.grid)
        self.finish(arrays)

    def resume(self, choice: Choice, federation: Federation) -> tuple[int, ArrayRecord]:
        """Go back to a checkpoint and return its round and knowledge; rounds written after it are dropped."""
        checkpoint = choice.checkpoint
        checkpoint.load_clients(self.folder, federation.grid, choice.lost)
        federation.trained = {k: round for k, round in checkpoint.trained.items() if k not in choice.lost}
        federation.note(choice.losses)
        self._members = {member.client_id: member for member in federation.roster}
        counts: dict[str, dict[int, Any]] = {
            name: {int(client): value for client, value in counted.items()}
            for name, counted in checkpoint.counts.items()
        }
        self._traffic = {client: Traffic(**traffic) for client, traffic in counts["traffic"].items()}
        self._latest, self._samples = counts["latest"], counts["samples"]
        self.uploads.go_on(counts["uploads"])
        federation.guard.go_on(counts["sizes"])
        federation.claims_guard.go_on(counts["claims"])
        federation.tests_guard.go_on(counts["tests"])
        self._lines = counts["lines"]
        lines = self._known_lines()
        self.rounds = [entry for _, entry in lines]
        with self._writing():
            for folder in checkpoints(self.folder):  # damaged, and given up
                if int(folder.name.removeprefix("round-")) > checkpoint.round:
                    remove(folder)
            replace_file(self.folder / ROUNDS_FILE, b"".join(line + b"\n" for line, _ in lines))
        for _, told in choice.losses:
            warn(told)
        return checkpoint.round, to_record(checkpoint.arrays)

    @property
    def dataset(self) -> str:
        """What the clients call their data: the run config's word where all have that, else theirs, each once."""
        said = dict.fromkeys(member.dataset for _, member in sorted(self._members.items()))
        return ", ".join(said) or self.config.dataset

    def _known_lines(self) -> list[tuple[bytes, Round]]:
        """Read the rounds that the checkpoint knows; one that is damaged, missing or doubled is said, and none else.

        Lines of later rounds, and one that was being written when the run was killed, are dropped.
        """
        path, known = self.folder / ROUNDS_FILE, dict[int, tuple[bytes, Round]]()
        for number, line, entry in read_rounds(self.folder):
            digest = self._lines.get(entry.round)
            if digest not in (None, _digest(line)):
                warn(f"{path}, line {number} is damaged and left out: round {entry.round} was written otherwise")
            elif entry.round in known:
                warn(f"{path}, line {number} is left out: round {entry.round} is there already")
            elif digest is not None:
                known[entry.round] = line, entry
        if lost := [round for round in self._lines if round not in known]:
            warn(f"{path} has lost round {', '.join(map(str, lost[:5]))}{' and more' * (len(lost) > 5)}")
        return [known[round] for round in sorted(known)]

    def finish(self, arrays: ArrayRecord) -> None:
        """Write summary, clients and the server state."""
        with self._writing():
            replace_file(self.folder / SERVER_STATE_FILE, pack(from_record(arrays), {"round": self._reached}))
            replace_file(self.folder / CLIENTS_FILE, clients_file(self.clients()))
            replace_file(self.folder / SUMMARY_FILE, summary_file(self.summary()))

    def discard(self) -> None:
        """Take back the files and folders made for a run that has reached nothing; the name is free again."""
        self.release()
        if not self.rounds and not self.config.resume:
            for path in self._made:
                with suppress(OSError):  # not empty: what others have put there stays
                    path.rmdir() if path.is_dir() else path.unlink()

    def summary(self) -> Summary:
        """Return the run in one object. Keys that mean nothing here are None."""
        last = self._last_evaluated
        latest = _values(last, "accuracy")
        validated = [entry.validation_accuracy for entry in self.rounds if entry.validation_accuracy is not None]
        return {
            "algorithm": self.config.algorithm,
            "dataset": self.dataset,
            "clients": len(self._members),
            "rounds": self._reached,
            "seed": self.config.seed,
            "engine": self.engine,
            "accuracy": last.accuracy if last else None,
            "accuracy_per_client": [latest.get(client) for client in sorted(self._members)],
            "acc": last.acc if last else None,
            "bwt": last.bwt if last else None,
            "fwt": last.fwt if last else None,
            "global_accuracy": last.global_accuracy if last else None,
            "best_validation_accuracy": max(validated, default=None),
            "bytes_up": sum(entry.bytes_up for entry in self.rounds),
            "bytes_down": sum(entry.bytes_down for entry in self.rounds),
            "wire_up": sum(entry.wire_up for entry in self.rounds),
            "wire_down": sum(entry.wire_down for entry in self.rounds),
            "seconds": round_seconds(sum(entry.seconds for entry in self.rounds)),
            "failures": sum(len(entry.failures) for entry in self.rounds),
            "epsilon": self.epsilon(max(self.uploads.counts.values(), default=0)),
            "noise_source": self.noise,
            "versions": installed(),
        }

    def epsilon(self, uploads: int) -> float | None:
        """Return the epsilon of a client after so many uploads, by the run config; None without noise."""
        return epsilon(self.config.noise_multiplier, uploads) if self.noise else None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunFolderError(f"run folder {self.folder} cannot be written: {error.strerror}") from None

    @property
    def _reached(self) -> int:
        return self.rounds[-1].round if self.rounds else 0

    @property
    def _last_evaluated(self) -> Round | None:
        return next((entry for entry in reversed(self.rounds) if entry.accuracy is not None), None)

    def clients(self) -> list[ClientRecord]:
        """Return one object a client: model, samples, accuracy before and after, bytes."""
        before = _values(self.rounds[0] if self.rounds else None, "accuracy")
        after = _values(self._last_evaluated, "accuracy")
        return [
            {
                "partition": client,
                "model": member.model,
                "dataset": member.dataset,
                "owners": member.owners or None,
                "parameters": member.parameters,
                "train": member.train,
                "validation": member.validation,
                "test": member.test,
                "accuracy_before": before.get(client),
                "accuracy": after.get(client),
                "bytes_up": self._traffic.get(client, Traffic()).bytes_up,
                "bytes_down": self._traffic.get(client, Traffic()).bytes_down,
                "versions": member.versions,
                "uploads": self.uploads.counts.get(client, 0),
                "epsilon": self.epsilon(self.uploads.counts.get(client, 0)),
            }
            for client, member in sorted(self._members.items())
        ]


def new_folder(config: RunConfig) -> Path:
    """Return the run folder that a config names, or a new one under ``runs/`` in the working directory."""
    if config.output_dir:
        return Path(config.output_dir).expanduser().resolve()
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    what = f"{config.algorithm}-{(config.dataset or OWN).replace('/', '-')}".encode()[:150].decode(errors="ignore")
    name = f"{what}-seed{config.seed}-{moment}"
    parent, tries = Path.cwd() / "runs", 1
    while (parent / (name if tries == 1 else f"{name}-{tries}")).exists():
        tries += 1
    return parent / (name if tries == 1 else f"{name}-{tries}")


def config_of(folder: Path) -> RunConfig:
    """Return the config that a run folder holds.

    Raises
    ------
    RunFolderError
        It holds none.
    """
    if not (folder / CONFIG_FILE).exists():
        raise RunFolderError(f"{folder} holds no run to resume")
    return RunConfig.from_flat(read_toml(folder / CONFIG_FILE))


def check_unchanged(folder: Path, config: RunConfig) -> None:
    """Refuse to go on with the run in a folder under another config.

    Raises
    ------
    ConfigError
        Names a key that differs, and both values.
    """
    before = config_of(folder).to_flat()
    for key, value in config.to_flat().items():
        if key not in CHANGEABLE and before.get(key) != value:
            raise ConfigError(
                f"{folder} was run with {key} = {before.get(key)!r}, not {value!r}: "
                "only rounds, checkpoint-every, track, node-keys, accept-loss and how to start may change on resume"
            )


def _holds_run(folder: Path) -> bool:
    path = folder / ROUNDS_FILE
    if path.exists() and not path.is_file():
        raise RunFolderError(f"{path} is no file")
    return path.exists() and path.stat().st_size > 0


def _check_holds_run(folder: Path) -> None:
    if not _holds_run(folder):
        raise RunFolderError(f"{folder} holds no run to resume")


def _digest(line: bytes) -> str:
    return blake2b(line, digest_size=8).hexdigest()


def round_seconds(seconds: float) -> float:
    """Return seconds to the millisecond."""
    return round(seconds, 3)


def _metrics(reply: Message) -> dict[str, float]:
    return {
        key: value for key, value in reply.content.metric_records[METRICS].items() if isinstance(value, int | float)
    }


def _values(entry: Round | None, metric: str) -> dict[int, float]:
    if entry is None:
        return {}
    return {int(client): values[metric] for client, values in entry.clients.items() if metric in values}


def _total(traffic: Iterable[Traffic]) -> Traffic:
    total = Traffic()
    for one in traffic:
        total.add(one)
    return total
