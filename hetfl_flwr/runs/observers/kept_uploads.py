"""What clients were sent and have uploaded, kept in the run folder: a file a round, for whoever audits the run."""

import re
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal

from hetfl_flwr.common.blobs import pack
from hetfl_flwr.common.errors import ConfigError, RunFolderError
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.runs.callbacks import RoundCallback, RunInfo
from hetfl_flwr.runs.schema import KEPT_UPLOADS, Round
from hetfl_flwr.runs.settings import begun_as
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.messaging.exchange import Reply, Sent
from hetfl_flwr.server.messaging.member import Member
from hetfl_flwr.wire.spec import Arrays, PayloadSpec

_NAME = re.compile(r"round-([1-9][0-9]{0,17})\.safetensors")


UPLOADS = "uploads"
"""The kind of file that holds the uploads of a round."""


class _Came(NamedTuple):
    """Who has answered, the ``num-examples`` that it has said, what it was sent, and what it has uploaded, decoded."""

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
        self._came: list[_Came] = []
        federation.messenger.received = self._take

    def begin(self, run: RunInfo) -> None:
        """Refuse a run that uploads nothing, and remove what a run that goes on will write again.

        Raises
        ------
        ConfigError
            No client uploads anything, or the disk cannot take what they upload.
        """
        if not any(self._upload_spec(member).arrays for member in self._federation.roster):
            raise ConfigError(f"keep-uploads = true: clients upload nothing under {run.config.algorithm}")
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
                replace_file(
                    self._folder / f"round-{entry.round}.safetensors",
                    _packed(begun_as(self._folder.parent), entry.round, came),
                )
            except OSError as error:
                raise RunFolderError(f"{self._folder} cannot be written: {error.strerror}") from None

    def _take(self, sent: Sent, member: Member, reply: Reply) -> None:
        self._came.append(_Came(member.client_id, reply.samples, sent.arrays, reply.arrays))

    def _check_room(self, after: int) -> None:
        """Refuse what the disk cannot take: of each upload its largest size, and as much for what was sent."""
        a_round = 2 * sum(self._upload_spec(member).nbytes for member in self._federation.roster)
        wanted, free = a_round * (self._rounds - after), shutil.disk_usage(self._folder.parent).free
        if wanted > free:
            raise ConfigError(
                f"keep-uploads = true: up to {decimal(wanted)} in all rounds, and {decimal(free)} are free in "
                f"{self._folder.parent}: use fewer rounds, or another output-dir"
            )


def kept_files(run_folder: Path) -> list[tuple[int, Path]]:
    """Return the rounds whose uploads a run folder holds, in order, and where."""
    found = [(_NAME.fullmatch(path.name), path) for path in (run_folder / KEPT_UPLOADS).glob("round-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def _packed(run: int | None, number: int, came: list[_Came]) -> bytes:
    """Write a round of a run as one blob, in which what many clients were sent alike stands once."""
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
    return pack(UPLOADS, {"run": run, "round": number, "uploads": rows}, arrays)


def _digest(arrays: Arrays) -> str:
    digest = blake2b(digest_size=16)
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
