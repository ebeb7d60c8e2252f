"""Where a data set lies, and its splits as they are there: files, a folder or the hub itself."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from glob import escape
from itertools import accumulate, islice, pairwise
from logging import CRITICAL, ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hetfl_flwr.data.sources.columns import Columns, roles
from hetfl_flwr.data.sources.csv.dialects import common_options, notes_on
from hetfl_flwr.data.sources.csv.headers import check_headers
from hetfl_flwr.data.sources.files import Part, called_in_python, csv_features, from_files, head, parts_of, reason
from hetfl_flwr.data.sources.folders import (
    EXPECTED,
    SAVE_AS,
    TABLES,
    check_files,
    check_owners,
    ending,
    files_of_rows,
    holds_images_alone,
    is_folder,
    local_folder,
    own_file,
    own_folder,
    possible_owners,
    signals_folder,
    spreadsheets,
)
from hetfl_flwr.data.sources.npz import npz_splits
from hetfl_flwr.data.sources.reading import Reading
from hetfl_flwr.data.sources.signals import read_signals
from hetfl_flwr.errors import DataError, HetflError

if TYPE_CHECKING:
    from datasets.arrow_dataset import Dataset
    from datasets.builder import DatasetBuilder
    from datasets.features import Features

    from hetfl_flwr.data.sources.catalogue import DatasetEntry


_SHOWN = 5  # names in a note, at most


_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in its folder


_SPLITS = ("train", "test", "validation", "valid", "val", "dev")  # files so called are parts of one data set


_SHARD = re.compile(r"-\d+-of-\d+\.")  # and so are these


_OF_SPLITS = re.compile("train|val|dev|test|eval|-of-")  # without one of these in a path all images are of one split


_NO_DATA = re.compile(r'Instruction "(\w+)" corresponds to no data!')  # what the library says of a split of no rows


_CONVERTED = "refs/convert/parquet"  # where the hub keeps a copy of what only a script could read


def features_of(data: "Dataset") -> "Features":
    """Return the features of a split, which are not to be changed: each `Dataset.features` is a copy of all of them."""
    features: Features = data.info.features
    return features


class Found(NamedTuple):
    """What messages call a data set; its splits; name and rows of each file read by itself; what was done unasked."""

    place: str
    splits: dict[str, "Dataset"]
    files: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    parts: Mapping[str, Sequence[Part]] = {}


def found_splits(dataset: str, reading: Reading, entry: "DatasetEntry | None") -> Found:
    """Return the splits of a data set, of which the catalogue may know where it lies.

    Raises
    ------
    DataError
        It cannot be found or read, or has no training split.
    """
    if is_folder(dataset):
        return _from_own(dataset, reading)
    if folder := folder_below(dataset, reading.data_dir, entry):
        return _from_folder(folder, reading)
    if reading.by_file:
        raise DataError(f"partition 'files': {dataset} is of the hub: give a folder of your own, such as ./wards")
    return Found(dataset, _from_hub(dataset, dataset))


def check_place(dataset: str, data_dir: str, entry: "DatasetEntry | None") -> None:
    """Refuse a data set whose files are not where they are to be; what is on the hub is not looked for.

    Raises
    ------
    DataError
        They are not there.
    """
    if not is_folder(dataset):
        folder_below(dataset, data_dir, entry)
    elif own_file(dataset) is None:
        own_folder(dataset)


def folder_below(dataset: str, data_dir: str, entry: "DatasetEntry | None") -> Path | None:
    """Return the folder below ``data-dir`` that holds a data set; None where there is no ``data-dir``: it is the hub's.

    Raises
    ------
    DataError
        There is none, or the data set is not on the hub.
    """
    origin = entry.origin if entry else ""
    if not data_dir:
        if entry and origin:
            raise DataError(
                f"{dataset} is not on the hub: get it from {origin}, put it into a folder <data-dir>/{dataset} as "
                f"{entry.form or EXPECTED}, and set data-dir"
            )
        return None
    if folder := local_folder(dataset, data_dir):
        return folder
    raise DataError(
        f"data-dir '{data_dir}' holds no {dataset}: expected in "
        f"'{Path(data_dir, dataset)}' {(entry and entry.form) or EXPECTED}; "
        + (f"get it from {origin}" if origin else "or leave data-dir empty to download it")
    )


def _from_own(dataset: str, reading: Reading) -> Found:
    folder = Path(dataset)
    given = called_in_python(folder)
    if not given:
        return _read_own(dataset, reading, {})
    try:
        return _read_own(dataset, reading, given)._replace(place=given[""])
    except HetflError as error:
        text = str(error)
        for name, said in sorted(given.items(), reverse=True):
            text = text.replace(f"'{folder / name}'", said)
        raise type(error)(text) from error


def _read_own(dataset: str, reading: Reading, given: Mapping[str, str]) -> Found:
    file, folder = own_file(dataset), Path(dataset)
    found = _read_files(dataset, file, reading, given)
    if file is not None:
        return found
    together = () if reading.by_file else (*_put_together(folder, found), *_files_together(folder, found, reading))
    return found._replace(notes=(*found.notes, *together, *_unread(folder)))


def _read_files(dataset: str, file: Path | None, reading: Reading, given: Mapping[str, str]) -> Found:
    if file is None and not reading.by_file:
        return _from_folder(own_folder(dataset), reading, given)
    if file is None and holds_images_alone(own_folder(dataset)):
        return _by_owner(own_folder(dataset), reading)
    called = f"'{dataset}'"
    files, others = ([file], []) if file else files_of_rows(own_folder(dataset))
    notes = [f"files of rows in folders below {called} are left out: {_shown(others, Path(dataset))}"] if others else []
    _quiet()
    data, owners = from_files(files, called, reading)
    parts = {"train": parts_of(files, owners if reading.by_file else (), given)}
    return Found(called, {"train": data}, owners if reading.by_file else (), (*notes, *notes_on(files)), parts)


def _shown(files: Sequence[Path], folder: Path, most: int = _SHOWN) -> str:
    named = ", ".join(str(file.relative_to(folder)) for file in files[:most])
    return named + (f" and {len(files) - most} more" if len(files) > most else "")


def _from_folder(folder: Path, reading: Reading, given: Mapping[str, str] | None = None, pattern: str = "") -> Found:
    from datasets.load import load_dataset_builder, load_from_disk

    images, called = holds_images_alone(folder), f"'{folder}'"
    if arrays := _arrays_in(folder, called, reading):
        return Found(called, arrays)
    files: dict[str, list[Path]] = {}
    check_files(folder)
    _quiet()
    try:
        if any((folder / name).exists() for name in _SAVED):
            data: Any = load_from_disk(str(folder))
        elif images:
            data = _images_in(folder, pattern)
        else:
            builder = load_dataset_builder(str(folder))
            files = {str(split): [*map(Path, names)] for split, names in (builder.config.data_files or {}).items()}
            data = _tables_in(builder, files, called, reading)
    except HetflError:
        raise
    except Exception as error:
        why = reason(error)
        if empty := _NO_DATA.fullmatch(why):
            raise DataError(f"split '{empty[1]}' of {called} is empty: take it away, or put rows into it") from error
        raise DataError(f"cannot read the data set in {called}: {why}") from error
    splits = dict(data) if isinstance(data, dict) else {"train": data}
    if images and not reading.label_column and any("label" not in features_of(split) for split in splits.values()):
        raise DataError(f"{called} holds images of fewer than two classes: put them into one folder a class")
    parts = {split: parts_of(paths, given=given) for split, paths in files.items()}
    return Found(called, splits, notes=notes_on([path for paths in files.values() for path in paths]), parts=parts)


def _arrays_in(folder: Path, called: str, reading: Reading) -> dict[str, "Dataset"]:
    """Return the splits of a folder of .npz files, or of one as the UCI archive has it; nothing of any other."""
    if signals := signals_folder(folder):
        return read_signals(signals)
    files = npz_splits(folder)
    if files:
        check_files(folder)
    return {split: from_files(paths, called, reading)[0] for split, paths in files.items()}


def _images_in(folder: Path, pattern: str) -> Any:
    from datasets.load import load_dataset

    if pattern:
        return load_dataset("imagefolder", data_files={"train": pattern})
    split = any(_OF_SPLITS.search(str(path.relative_to(folder))) for path in folder.rglob("*"))
    # else it is what the library finds after 64 walks through the folder, which take longer than to read the images
    return load_dataset("imagefolder", data_dir=str(folder), data_files=None if split else {"train": "**"})


def _put_together(folder: Path, found: Found) -> tuple[str, ...]:
    """Return a note where images are read as those of one that look like those of several owners."""
    owners = possible_owners(folder) if holds_images_alone(folder) and set(found.splits) == {"train"} else []
    if not owners:
        return ()
    named = ", ".join(owners[:_SHOWN]) + (f" and {len(owners) - _SHOWN} more" if len(owners) > _SHOWN else "")
    return (f"images of {found.place} in {named} are put together: partition=files has a client for each",)


def _files_together(folder: Path, found: Found, reading: Reading) -> tuple[str, ...]:
    """Return a note where several files of rows are read as one table, and nothing says whose rows are whose."""
    files = [path for path in folder.glob("*") if ending(path) in TABLES and path.is_file()]
    parts = [path for path in files if not _SHARD.search(path.name) and path.stem not in _SPLITS]
    if len(parts) < 2 or reading.id_column or any((folder / name).exists() for name in _SAVED):
        return ()
    return (f"rows of {len(parts)} files in {found.place} are put together: partition=files has a client for each",)


def _unread(folder: Path) -> tuple[str, ...]:
    """Return a note where spreadsheets lie beside what is read."""
    left = spreadsheets(folder)
    return (f"not read in '{folder}': {_shown(left, folder)}: {SAVE_AS}",) if left else ()


def _by_owner(folder: Path, reading: Reading) -> Found:
    """Return images in folders ``OWNER/CLASS``, those of one owner after those of another."""
    import pyarrow.compute as pc

    check_owners(folder)
    found = _from_folder(folder, reading, pattern=f"{escape(str(folder))}/**")
    data = found.splits["train"]
    [column] = [name for name, feature in features_of(data).items() if type(feature).__name__ == "Image"]
    paths = pc.struct_field(data.with_format("arrow")[:][column], "path").to_pylist()
    owners = [Path(path).parent.parent.name for path in paths]
    ordered = sorted(range(len(owners)), key=owners.__getitem__)
    return found._replace(splits={"train": data.select(ordered)}, files=tuple(sorted(Counter(owners).items())))


def _quiet() -> None:
    getLogger("datasets").setLevel(CRITICAL)  # of what it raises, too, and with the whole path


def _builder_of(files: Mapping[str, Sequence[Path]], options: Mapping[str, Any]) -> "DatasetBuilder":
    """Return what reads csv files of splits in a way that must be told."""
    from datasets.load import load_dataset_builder

    names = {split: [escape(str(path)) for path in paths] for split, paths in files.items()}
    return load_dataset_builder("csv", data_files=names, **options)


def _rows(builder: "DatasetBuilder", files: Mapping[str, Sequence[Path]], headers: Mapping[Path, Sequence[str]]) -> Any:
    """Read files of rows; where one part of a csv file holds numbers and another one texts, all of that is texts."""
    import datasets.features

    try:
        builder.download_and_prepare()
    except Exception:
        tables = [path for path in headers if TABLES[ending(path)] == "csv"]
        features = csv_features(tables) if len(tables) == len(headers) else None
        if not features:
            raise
        of_columns: Any = datasets.features.Features
        builder = _builder_of(files, {**common_options(tables), "features": of_columns(features)})
        builder.download_and_prepare()
    return builder.as_dataset()


def _tables_in(builder: "DatasetBuilder", files: Mapping[str, Sequence[Path]], called: str, reading: Reading) -> Any:
    """Read the files of rows of all splits, after their headers were examined."""
    tables = [path for paths in files.values() for path in paths]
    headers = check_headers(tables, reading.ignored)
    if len({tuple(sorted(header)) for header in headers.values()}) > 1:
        return _one_by_one(files, called, reading)
    if options := common_options(tables):
        builder = _builder_of(files, options)
    if columns := _columns(builder, files, headers):
        roles(called, columns, reading)
    return _rows(builder, files, headers)


def _one_by_one(files: Mapping[str, Sequence[Path]], called: str, reading: Reading) -> dict[str, "Dataset"]:
    """Read files of rows of which some lack columns that nobody learns from: these have no cells there."""
    data, owners = from_files([path for paths in files.values() for path in paths], called, reading)
    rows = iter(count for _, count in owners)
    ends = [*accumulate(sum(islice(rows, len(paths))) for paths in files.values())]
    return {split: data.select(range(*of_split)) for split, of_split in zip(files, pairwise([0, *ends]), strict=True)}


def _columns(
    builder: "DatasetBuilder", files: Mapping[str, Sequence[Path]], headers: Mapping[Path, Sequence[str]]
) -> dict[str, Columns]:
    """Return the columns of each split, as far as the heads of its files tell them; nothing if one does not."""
    if builder.info.features is not None:
        return dict.fromkeys(files, builder.info.features)
    found = {split: head(builder.config, paths[0], headers) for split, paths in files.items()}
    return {split: columns for split, columns in found.items() if columns} if all(found.values()) else {}


def _from_hub(hub_id: str, called: str) -> dict[str, "Dataset"]:
    from datasets.load import load_dataset

    getLogger("huggingface_hub").setLevel(ERROR)  # of its retries: what they come to is said in one line
    try:
        try:
            data: Any = load_dataset(hub_id)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            data = load_dataset(hub_id, revision=_CONVERTED)
    except Exception as error:
        raise DataError(
            f"cannot load {called} from the hub ({reason(error)}): check name and connection, or put "
            f"a copy in the hub's layout into a folder <data-dir>/{called} and set data-dir"
        ) from error
    return dict(data)
