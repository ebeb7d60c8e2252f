"""What clients were sent and have uploaded, kept in the run folder: a file a round, for whoever audits the run."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from safetensors import SafetensorError

from hetfl_flwr.common.errors import ConfigError, DamagedError, RunFolderError
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.runs.callbacks import RoundCallback, RunInfo
from hetfl_flwr.runs.checkpoints.checkpoint import pack, unpack
from hetfl_flwr.runs.schema import KEPT_UPLOADS, Round
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.messaging.exchange import Reply, Sent
from hetfl_flwr.server.messaging.member import Member
from hetfl_flwr.wire.spec import Arrays, PayloadSpec

MOST_A_ROUND = 2**32
"""Bytes that the uploads of a round may have together: they are in memory until it ends."""

_NAME = re.compile(r"round-([1-9][0-9]{0,17})\.safetensors")


@dataclass(frozen=True)
class KeptUpload:
    """What one client was sent in a round, and what it has answered.

    Parameters
    ----------
    round : int
        The round that it counts in.
    client_id : int
        Which client.
    samples : int
        The ``num-examples`` that it has said.
    download, upload : mapping of str to array
        What it was sent, as it travelled, and what it has uploaded, decoded and checked.
    """

    round: int
    client_id: int
    samples: int
    download: Arrays
    upload: Arrays


class KeptUploads(RoundCallback):
    """Writes each round's uploads to ``uploads/round-N.safetensors``, once that round is in ``rounds.jsonl``.

    An upload that is set aside, as it is far larger than others, is kept as well: the server has read it. One that
    cannot be decoded is not. Files of rounds that a resumed run plays again are removed when it goes on.

    Parameters
    ----------
    federation : Federation
        The clients, whose answers it is given.
    upload_spec : callable
        What each of them is to upload.
    """

    def __init__(self, federation: Federation, upload_spec: Callable[[Member], PayloadSpec]) -> None:
        self._federation, self._upload_spec = federation, upload_spec
        self._folder = Path()
        self._came: list[KeptUpload] = []
        federation.messenger.received = self._take

    def begin(self, run: RunInfo) -> None:
        """Refuse a run that uploads nothing, and remove what a run that goes on will write again.

        Raises
        ------
        ConfigError
            No client uploads anything, or the disk cannot take what they upload.
        """
        if not any(self._upload_spec(member).arrays for member in self._federation.roster):
            raise ConfigError(
                f"keep-uploads = true: clients upload nothing under {run.config.algorithm}; leave it out, or take "
                "another algorithm"
            )
        self._folder, self._rounds = run.folder / KEPT_UPLOADS, run.config.rounds
        if run.after is not None:
            self._check_room(run.after)
        for number, path in kept_files(run.folder):
            if number > (run.after or 0):
                path.unlink()

    def round(self, entry: Round) -> None:
        """Write what has come in a round.

        Raises
        ------
        ConfigError
            Before the first round: the disk cannot take what clients will upload.
        RunFolderError
            The file cannot be written.
        """
        came, self._came = self._came, []
        if entry.round == 0:  # from here on the server knows the public samples, by which uploads may be sized
            self._check_room(0)
        if came:
            try:
                replace_file(self._folder / f"round-{entry.round}.safetensors", _packed(entry.round, came))
            except OSError as error:
                raise RunFolderError(f"{self._folder} cannot be written: {error.strerror}") from None

    def _take(self, sent: Sent, member: Member, reply: Reply) -> None:
        self._came.append(KeptUpload(0, member.client_id, reply.samples, sent.arrays, reply.arrays))

    def _check_room(self, after: int) -> None:
        """Refuse what memory or disk cannot take: of each upload its largest size, and as much for what was sent."""
        a_round = 2 * sum(self._upload_spec(member).nbytes for member in self._federation.roster)
        wanted, free = a_round * (self._rounds - after), shutil.disk_usage(self._folder.parent).free
        if a_round > MOST_A_ROUND:
            raise ConfigError(
                f"keep-uploads = true: up to {decimal(a_round)} a round, and at most {decimal(MOST_A_ROUND)} are kept: "
                "use smaller models or fewer clients"
            )
        if wanted > free:
            raise ConfigError(
                f"keep-uploads = true: up to {decimal(wanted)} in all rounds, and {decimal(free)} are free in "
                f"{self._folder.parent}: use fewer rounds, or another output-dir"
            )


def kept_files(run_folder: Path) -> list[tuple[int, Path]]:
    """Return the rounds whose uploads a run folder holds, in order, and where."""
    found = [(_NAME.fullmatch(path.name), path) for path in (run_folder / KEPT_UPLOADS).glob("round-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def kept_uploads(run_folder: Path) -> Iterator[KeptUpload]:
    """Go through the uploads of a run, round by round; within one by client, and of one client as they came.

    Raises
    ------
    RunFolderError
        A file is damaged, or cannot be read.
    """
    for number, path in kept_files(run_folder):
        try:
            arrays, metadata = unpack(path)
            yield from _unpacked(number, arrays, metadata)
        except DamagedError as error:
            raise RunFolderError(f"{path}: damaged ({error})") from None
        except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
            said = getattr(error, "strerror", None) or type(error).__name__
            raise RunFolderError(f"{path}: cannot be read: {said}") from None


def _packed(number: int, came: list[KeptUpload]) -> bytes:
    """Write a round as one blob, in which what many clients were sent alike stands once."""
    arrays: dict[str, Any] = {}
    rows: list[dict[str, int]] = []
    downloads: dict[str, int] = {}
    for position, one in enumerate(sorted(came, key=lambda one: one.client_id)):
        alike = _digest(one.download)
        if alike not in downloads:
            downloads[alike] = len(downloads)
            arrays |= {f"download.{downloads[alike]}.{name}": array for name, array in one.download.items()}
        arrays |= {f"upload.{position}.{name}": array for name, array in one.upload.items()}
        rows.append({"client": one.client_id, "samples": one.samples, "download": downloads[alike]})
    return pack(arrays, {"round": number, "uploads": rows})


def _unpacked(number: int, arrays: Arrays, metadata: dict[str, Any]) -> Iterator[KeptUpload]:
    if metadata["round"] != number:
        raise DamagedError(f"it is of round {metadata['round']}")
    for position, row in enumerate(metadata["uploads"]):
        yield KeptUpload(
            number,
            int(row["client"]),
            int(row["samples"]),
            _below(arrays, f"download.{row['download']}."),
            _below(arrays, f"upload.{position}."),
        )


def _below(arrays: Arrays, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _digest(arrays: Arrays) -> str:
    digest = blake2b(digest_size=16)
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
