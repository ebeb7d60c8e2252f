"""A folder as bytes, and back."""

import io
import tarfile
from contextlib import suppress
from pathlib import Path
from shutil import rmtree


def pack(folder: Path) -> bytes:
    """Return a folder with all that is in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Put a packed folder in the place of one, whole or not at all.

    Raises
    ------
    OSError
        It cannot be written, or what is packed would go elsewhere than into `folder`; what was there before still is.
    """
    new, old = _beside(folder)
    for path in (new, old):
        rmtree(path, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(new, filter="data")
        with suppress(FileNotFoundError):
            folder.rename(old)
        new.rename(folder)
    except tarfile.TarError as error:
        raise OSError(str(error)) from None
    finally:
        mend(folder)
        for path in (new, old):
            rmtree(path, ignore_errors=True)


def mend(folder: Path) -> None:
    """Where an `unpack` was killed when the old folder was away and the new one not yet there, put the old one back."""
    _, old = _beside(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
