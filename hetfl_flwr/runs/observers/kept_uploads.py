"""What clients were sent and have uploaded, kept in the run folder: a file a round, for whoever audits the run."""

import re
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from hetfl_flwr.common.blobs import pack
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.runs.callbacks import RoundCallback, RunInfo
from hetfl_flwr.runs.schema import KEPT_UPLOADS, Round
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.messaging.exchange import Reply, Request
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
    run : int
        The id under which the run was begun.
    """

    def __init__(self, federation: Federation, upload_spec: Callable[[Member], PayloadSpec], run: int) -> None:
        self._federation, self._upload_spec, self._run = federation, upload_spec, run
        self._folder = Path()
        self._came: list[_Came] = []
        federation.messenger.received = self._take

    def begin(self, run: RunInfo) -> None:
        """Refuse a run that uploads nothing, and remove what a run that goes on will write again.

        Raises
        ------
        ConfigError
            No client uploads anything.
        """
        if not any(self._upload_spec(member).arrays for member in self._federation.roster):
            raise ConfigError(f"keep-uploads = true: clients upload nothing under {run.config.algorithm}")
        self._folder = run.folder / KEPT_UPLOADS
        for number, path in kept_files(run.folder):
            if number > (run.after or 0):
                path.unlink()

    def round(self, entry: Round) -> None:
        """Write what has come in a round.

        Raises
        ------
        RunFolderError
            The file cannot be written.
        """
        came, self._came = self._came, []
        if came:
            try:
                replace_file(
                    self._folder / f"round-{entry.round}.safetensors",
                    _packed(self._run, entry.round, came),
                )
            except OSError as error:
                raise RunFolderError(f"{self._folder} cannot be written: {error.strerror}") from None

    def _take(self, sent: Request, member: Member, reply: Reply) -> None:
        self._came.append(_Came(member.client_id, reply.samples, sent.arrays, reply.arrays))


def kept_files(run_folder: Path) -> list[tuple[int, Path]]:
    """Return the rounds whose uploads a run folder holds, in order, and where."""
    found = [(_NAME.fullmatch(path.name), path) for path in (run_folder / KEPT_UPLOADS).glob("round-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def _packed(run: int, number: int, came: list[_Came]) -> bytes:
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
