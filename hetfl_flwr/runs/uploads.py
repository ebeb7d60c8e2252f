"""Downloads and uploads of clients, saved in the run folder for an audit: one file per round."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hetfl_flwr.common.blobs import pack, read_blob
from hetfl_flwr.common.files import replace_file, writing
from hetfl_flwr.errors import ConfigError, DamagedError, RunFolderError
from hetfl_flwr.runs.callbacks import RoundCallback, RunInfo
from hetfl_flwr.runs.checkpoint import Checkpoint, checkpoints, pooled
from hetfl_flwr.runs.record import KEPT_UPLOADS, Round
from hetfl_flwr.server.exchange import Reply
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.spec import Arrays, PayloadSpec

_NAME = re.compile(r"round-([1-9][0-9]{0,17})\.safetensors")

UPLOADS = "uploads"
"""File kind of the uploads of a round."""


@dataclass(frozen=True)
class KeptUpload:
    """A client's download and upload in a round."""

    round: int
    client_id: int
    samples: int
    """The ``num-examples`` of the client's reply."""
    download: Arrays
    """The arrays as they were sent, in half precision if the run used it."""
    upload: Arrays
    """The decoded and checked arrays."""


class KeptUploads(RoundCallback):
    """Writes each round's uploads to ``uploads/round-N.safetensors``, after the round is in ``rounds.jsonl``.

    Uploads that the guard rejects are saved as well, because the server has read them; uploads that cannot be decoded
    are not. When a run resumes, files of rounds after its checkpoint are removed. `run` is the run's id when it was
    new.
    """

    def __init__(self, federation: Federation, upload_spec: Callable[[Member], PayloadSpec], run: int) -> None:
        self._federation, self._upload_spec, self._run = federation, upload_spec, run
        self._folder = Path()
        self._received: list[KeptUpload] = []
        federation.exchange.received = self._take

    def begin(self, run: RunInfo) -> None:
        """Remove the files that a resumed run will write again; raise `ConfigError` if no client uploads anything."""
        if not any(self._upload_spec(member).arrays for member in self._federation.roster):
            raise ConfigError(f"keep-uploads = true: {run.config.algorithm} uploads nothing; set it to false")
        self._folder = run.folder / KEPT_UPLOADS
        for number, path in kept_files(run.folder):
            if number > (run.after or 0):
                path.unlink()

    def round(self, entry: Round) -> None:
        """Write the uploads of a round; raise `RunFolderError` if the file cannot be written."""
        received, self._received = sorted(self._received, key=lambda one: one.client_id), []
        if not received:
            return
        pool, sent = pooled({}, ((position, one.download) for position, one in enumerate(received)))
        uploads = {f"upload.{n}.{name}": array for n, one in enumerate(received) for name, array in one.upload.items()}
        rows = [(one.client_id, one.samples) for one in received]
        values = {"run": self._run, "round": entry.round, "rows": rows, "downloads": sent}
        with writing(self._folder):
            replace_file(self._folder / f"round-{entry.round}.safetensors", pack(UPLOADS, values, {**pool, **uploads}))

    def _take(self, member: Member, download: Arrays, reply: Reply) -> None:
        self._received.append(KeptUpload(0, member.client_id, reply.samples, download, reply.arrays))


def kept_files(run_folder: Path) -> list[tuple[int, Path]]:
    """Return the rounds with saved uploads and their files, in order."""
    found = [(_NAME.fullmatch(path.name), path) for path in (run_folder / KEPT_UPLOADS).glob("round-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def kept_uploads(run_folder: Path) -> Iterator[KeptUpload]:
    """Yield the saved uploads of a run by round, then by client, then in the order of arrival.

    Raises `RunFolderError` if a file cannot be read, is damaged or is of another run.
    """
    begun = {Checkpoint.read_one(folder).at["begun"] for folder in checkpoints(run_folder)[:1]}
    for number, path in kept_files(run_folder):
        try:
            values, arrays, _ = read_blob(path, UPLOADS)
        except DamagedError as error:
            raise RunFolderError(str(error)) from None
        if values["round"] != number:
            raise RunFolderError(f"{path}: damaged (it holds round {values['round']})")
        if begun - {values["run"]}:
            raise RunFolderError(f"{path} is of another run than the checkpoint of {run_folder}")
        downloads = {position: names for positions, names in values["downloads"] for position in positions}
        for position, (client_id, samples) in enumerate(values["rows"]):
            download = {name: arrays[key] for name, key in downloads[position].items()}
            own = f"upload.{position}."
            upload = {name.removeprefix(own): array for name, array in arrays.items() if name.startswith(own)}
            yield KeptUpload(number, client_id, samples, download, upload)
