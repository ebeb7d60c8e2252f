"""What others are told of an error: what is wrong and which key says where, and no part of a path or a column's name.

Each case below ends in one error of ours whose whole text names an odd path, or an odd column, of a node.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from fixtures.data.columns import write_csv, write_parquet
from fixtures.data.hub import colour, grey, table
from fixtures.data.loading import load_client

from hetfl_flwr.algorithms import find
from hetfl_flwr.common.errors import HetflError
from hetfl_flwr.config import RunConfig, for_node
from hetfl_flwr.data import DataSpec, Reading, kind_of
from hetfl_flwr.data.sources import folders
from hetfl_flwr.models import build_model
from hetfl_flwr.node.state import ClientState, Stamp
from hetfl_flwr.node.stores import FileStore
from simulations.inference.unpacking import unpack_inputs

WARD = "O'Brien, Jane (HIV+)"
"""A folder that nobody else must hear of; its parts are looked for one by one."""

COLUMN = "Doe's  HIV/AIDS, (1)"
"""A column that nobody else must hear of."""

NEAR = "oe's  xxx/xxxx, (1)"
"""What somebody has typed for it."""

SECRETS = ("Brien", "Jane", "HIV", "AIDS", "Doe", "ward", "pytest")
ROWS = {"age": [1, 2, 3, 4], "sick": ["no", "yes", "no", "yes"]}


def told(call: Callable[..., object], *args: Any, **keys: Any) -> tuple[str, str]:
    """Return what the node's log has of an error, and what others are told."""
    with pytest.raises(HetflError) as caught:
        call(*args, **keys)
    return str(caught.value), caught.value.outward


def load(folder: Path | str, **keys: Any) -> object:
    own = {"partition": "all", "label_column": "sick", "partition_id": 0, "num_partitions": 1, "seed": 0}
    return load_client(dataset=str(folder), **{**own, **keys})


def csv(folder: Path, train: str = "age,sick\n1,no\n2,yes\n3,no\n4,yes\n", **splits: str) -> str:
    return write_csv(folder, train=train, **splits)


def parquet(folder: Path, test: dict[str, list[Any]] | None = None, **columns: list[Any]) -> str:
    return write_parquet(folder, train=ROWS | columns, **({"test": test} if test else {}))


def written(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir()
    (folder / name).write_bytes(content)
    return folder


def pictures(folder: Path, **columns: Any) -> str:
    folder.mkdir()
    table(**columns).to_parquet(folder / "train-0.parquet")
    return str(folder)


def classes(folder: Path, *sizes: tuple[int, int], broken: bool = False) -> str:
    for number, size in enumerate(sizes):
        (folder / f"{number}").mkdir(parents=True)
        grey(9, size).save(folder / f"{number}" / "a.png")
        grey(7, sizes[0]).save(folder / f"{number}" / "b.png")
    if broken:
        (folder / "0" / "c.png").write_bytes(b"no image")
    return str(folder)


def neutral(folder: Path) -> str:
    """Write what the catalogue leaves all rows of the test split out of."""
    rows = {"text": ["a", "b"], "sentiment": [0, 4]}
    write_parquet(folder / "stanfordnlp" / "sentiment140", train=rows, test=rows | {"sentiment": [2, 2]})
    return str(folder)


def damaged_arrow(folder: Path) -> str:
    datasets.Dataset.from_dict(ROWS).save_to_disk(folder)
    next(folder.glob("*.arrow")).write_bytes(b"no arrow")
    return str(folder)


def mostly_other(folder: Path, patch: pytest.MonkeyPatch) -> object:
    patch.setattr(folders, "MANY", 8)
    csv(folder)
    for name in "abcdefgh":
        (folder / name).touch()
    return load(folder)


def the_system(folder: Path, patch: pytest.MonkeyPatch) -> object:
    patch.setattr(folders, "SYSTEM", (folder.parent,))
    folder.mkdir()
    return load(folder)


def unreachable(folder: Path, patch: pytest.MonkeyPatch) -> object:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    patch.setattr("datasets.load.load_dataset", fail)
    return load("hiv-study/Jane")


def cached(folder: Path, patch: pytest.MonkeyPatch) -> object:
    """A data set of the hub that was downloaded before, in which an image cannot be decoded."""
    folder.mkdir()
    (folder / "x.png").write_bytes(b"no image")
    rows = datasets.Dataset.from_dict({"image": [str(folder / "x.png")] * 4, "sick": ROWS["sick"]})
    patch.setattr("datasets.load.load_dataset", lambda *_, **__: {"train": rows})
    return load("hiv-study/Jane", image_column="image")


READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (load, "dataset '(not shown)' is not a folder"),
    "no data": (lambda at: load(written(at, "x.txt", b"")), "dataset '(not shown)' holds no data"),
    "csv, a broken row": (
        lambda at: load(csv(at, "age,sick\n1,no\n2,3,4,5\n")),
        "row 3 of '(not shown)' has 4 fields, its header 2",
    ),
    "csv, a column twice": (lambda at: load(csv(at, "age,age,sick\n1,2,no\n")), "'(not shown)' has column (not shown)"),
    "csv, different columns": (
        lambda at: load(csv(at, test="sick\nno\n")),
        "'(not shown)' has no column (not shown), which '(not shown)' has: add it, or name it in ignore-columns",
    ),
    "data-dir, an empty split": (
        lambda at: load("sentiment140", data_dir=neutral(at), label_column=""),
        "split 'test' of '(not shown)' is empty",
    ),
    "csv, no training split": (lambda at: load(write_csv(at, test="age,sick\n1,no\n")), "has no split 'train'"),
    "csv, no such label": (lambda at: load(csv(at), label_column="ill"), "has no column 'ill': set"),
    "csv, all labels are missing": (
        lambda at: load(csv(at, "age,sick\n1,\n2,\n3,\n")),
        "no row of '(not shown)' has any sick",
    ),
    "csv, one label": (lambda at: load(csv(at, "age,sick\n1,no\n2,no\n")), "has one value only"),
    "csv, a quantity": (
        lambda at: load(csv(at, "age,sick\n" + "".join(f"1,{row}.5\n" for row in range(30)))),
        "this looks like regression",
    ),
    "csv, a label a row": (
        lambda at: load(csv(at, "age,sick\n" + "".join(f"1,x{row}\n" for row in range(30)))),
        "this looks like a name of each row",
    ),
    "csv, integers for classes": (
        lambda at: load(csv(at, "age,sick\n1,0\n2,1\n"), classes="a,b"),
        "holds integers: write classes as integers",
    ),
    "csv, another label": (lambda at: load(csv(at), classes="no,ill"), "sick (not shown): labels must be"),
    "csv, infinite": (lambda at: load(csv(at, "age,sick\n1,no\ninf,yes\n")), "row 3 of split 'train' of '(not shown)'"),
    "csv, no columns": (lambda at: load(csv(at), ignore_columns="age"), "has no column to learn from"),
    "csv, no such column": (lambda at: load(csv(at), ignore_columns="agee"), "ignore-columns of '(not shown)'"),
    "csv, no domain": (lambda at: load(csv(at), domain_column="where"), "set domain-column to one of"),
    "csv, a domain without rows": (
        lambda at: load(csv(at, "age,at,sick\n1,2,no\n3,2,yes\n", test="age,at,sick\n1,3,no\n"), domain_column="at"),
        "has no training row of at (not shown)",
    ),
    "csv, no owner": (
        lambda at: load(csv(at), partition="natural:who"),
        "set COLUMN in partition=natural:COLUMN to one of",
    ),
    "csv, two kinds of input": (
        lambda at: load(csv(at), text_column="age", image_column="age"),
        "image-column and text-column are both set for '(not shown)'",
    ),
    "csv, no images": (lambda at: load(csv(at), image_column="age"), "set image-column to one that does"),
    "csv, as ImageNet": (lambda at: load(csv(at), normalize="imagenet"), "'(not shown)' is a table: use mean-image"),
    "csv, no test split": (lambda at: load(csv(at), test="global"), "dataset '(not shown)' has no test split"),
    "csv, turned": (lambda at: load(f"rotated-{csv(at)}"), "only images can be rotated"),
    "csv, rotated by domain": (
        lambda at: load(f"rotated-{csv(at)}", domain_column="age"),
        "dataset '(not shown)': '(not shown)' has domains of its own",
    ),
    "text, no texts": (lambda at: load(parquet(at), text_column="age"), "set text-column to one that does"),
    "text, missing": (
        lambda at: load(parquet(at, said=["a", "b", None, "d"]), text_column="said"),
        "row 3 of split 'train' of '(not shown)' has no said",
    ),
    "text, sliced": (
        lambda at: load(parquet(at, said=["a", "b", "c", "d"]), text_column="said", features="slices:0.5"),
        "'(not shown)' is no table",
    ),
    "parquet, damaged": (lambda at: load(written(at, "train.parquet", b"PAR1 no")), "cannot read the data set in"),
    "parquet, unlike types": (
        lambda at: load(parquet(at, test={"age": [[1]], "sick": ["no"]})),
        "the data set in '(not shown)'",
    ),
    "parquet, two types of label": (
        lambda at: load(parquet(at, sick=[0, 1, 0, 1], test={"age": [1], "sick": ["no"]})),
        "(not shown)",
    ),
    "json lines, broken": (lambda at: load(written(at, "train.jsonl", b'{"age": 1\n{')), "cannot read the data set in"),
    "arrow, damaged": (lambda at: load(damaged_arrow(at)), "cannot read the data set in"),
    "images, one class": (lambda at: load(classes(at, (4, 4)), label_column=""), "images of fewer than two classes"),
    "images, unlike sizes": (
        lambda at: load(classes(at, (4, 4), (5, 5)), label_column=""),
        "image '(not shown)' is 5x5 pixels, others are 4x4: set image-size",
    ),
    "images, damaged": (
        lambda at: load(classes(at, (4, 4), (4, 4), broken=True), label_column=""),
        "cannot decode image '(not shown)'",
    ),
    "images, a colour": (
        lambda at: load(pictures(at, images=[grey(1)] * 5 + [colour(1, 2, 3)]), label_column=""),
        "is in colour, others are grey",
    ),
    "images, no label": (
        lambda at: load(pictures(at, labels=[None] * 6), label_column=""),
        "no row of '(not shown)' has any label",
    ),
    "data-dir, none": (lambda at: load("mnist", data_dir=str(at)), "data-dir '(not shown)' is not a folder"),
    "data-dir, not there": (
        lambda at: load("mnist", data_dir=str(written(at, "x.txt", b""))),
        "data-dir '(not shown)' holds no ylecun/mnist: expected in '(not shown)' parquet",
    ),
    "data-dir, an own name": (
        lambda at: load("hiv-study/Jane", data_dir=str(written(at, "x.txt", b""))),
        "data-dir '(not shown)' holds no (not shown): expected in",
    ),
    "a name": (lambda at: load(WARD), "unknown dataset '(not shown)':"),
    "a name twice": (lambda at: load(f"{at},{at}".replace(", ", " ")), "more than once: name each data set once"),
    "an empty name": (lambda at: load(f"{at},,digits"), "has an empty name"),
    "rotated twice": (lambda at: load(f"rotated-rotated-./{at.name}".replace(",", "")), "is rotated twice"),
    "two kinds": (
        lambda at: kind_of(f"digits,{csv(at)}", Reading(label_column="sick")),
        "digits are images, (not shown) are ta",
    ),
}
"""What a reader refuses: the call, and what others are told."""


@pytest.mark.parametrize("case", READERS)
def test_no_part_of_the_name_of_a_data_folder_is_told(case, tmp_path):
    call, line = READERS[case]
    folder = tmp_path / (WARD.replace(",", "") if "a name" not in case else WARD)
    own, others = told(call, folder)
    assert "Brien" in own or "Jane" in own
    assert line in others
    assert not [secret for secret in SECRETS if secret in others]


@pytest.mark.parametrize("call", [mostly_other, the_system, unreachable, cached])
def test_nor_where_the_machine_has_a_say(call, tmp_path, monkeypatch):
    own, others = told(call, tmp_path / WARD.replace(",", ""), monkeypatch)
    assert "Jane" in own
    assert not [secret for secret in SECRETS if secret in others]
    assert others.startswith(
        ("dataset '(not shown)' ", "cannot load (not shown) from the hub (", "cannot decode image")
    )


STAMP = Stamp("7", "fedhe", "mlp", 1)


def full(store: FileStore, method: str, *args: object) -> None:
    """Let a file stand where the folder should."""
    folder = Path(store._path).parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("no folder")
    getattr(store, method)(*args)


def saved(store: FileStore, stamp: Stamp = STAMP) -> FileStore:
    store.save(ClientState({"t": torch.ones(2)}), stamp)
    return store


def flipped(store: FileStore) -> None:
    saved(store)._path.write_bytes(store.read()[:-1] + b"!")
    store.load(STAMP, "client 1 (mlp)")


def stuck(store: FileStore, method: str) -> None:
    """Let folders stand where the files should."""
    store._path.mkdir(parents=True)
    store._kept.mkdir()
    getattr(store, method)()


STATES: dict[str, tuple[Callable[[FileStore], object], str]] = {
    "folder": (lambda store: full(store, "check_writable"), "state-dir (not shown) cannot be written: "),
    "write": (lambda store: full(store, "write", b""), "state file (not shown): cannot be written: "),
    "read": (lambda store: stuck(store, "read"), "state file (not shown): cannot be read: "),
    "kept": (lambda store: stuck(store, "kept"), "state file (not shown): cannot be read: "),
    "keep": (lambda store: stuck(store, "keep"), "state file (not shown): cannot be written: "),
    "forget": (lambda store: stuck(store, "forget"), "state file (not shown): cannot be removed: "),
    "damaged": (flipped, "client 1 (mlp): state file (not shown): damaged state (its checksum does not fit)"),
    "another's": (
        lambda store: saved(store, replace(STAMP, run="6")).load(STAMP, "client 1 (mlp)"),
        "client 1 (mlp): state file (not shown): state of another run: found '6', expected '7'; use another state-dir",
    ),
    "inputs": (lambda store: unpack_inputs(store._path), "(not shown): cannot be read: No such file"),
}


@pytest.mark.parametrize("case", STATES)
def test_nor_of_a_state_folder(case, tmp_path):
    call, line = STATES[case]
    own, others = told(call, FileStore(tmp_path / WARD / "run-7", 1))
    assert WARD in own
    assert others.startswith(line)
    assert not [secret for secret in SECRETS if secret in others]


def test_nor_where_a_damaged_state_is_looked_at_on_registration(tmp_path, make_config, make_node):
    node = make_node(make_config(state_dir=str(tmp_path / WARD)))
    node.write_state(ClientState({"t": torch.ones(2)}))
    node.store._path.write_bytes(b"?")
    own, others = told(node.registered_state)
    assert WARD in own
    damage = "state file (not shown): damaged state (its header cannot be read)"
    assert f"{damage}: it would go on from an older state" in others


COLOUR = DataSpec((3, 64, 64), 7)


def pretrained(place: Path | str, name: str = "resnet18") -> object:
    return build_model(name, COLOUR, seed=0, pretrained=str(place))


def weights(at: Path, content: object) -> Path:
    at.mkdir()
    torch.save(content, at / "resnet18.pth")
    return at


def own_model(at: Path, text: str, patch: pytest.MonkeyPatch, name: str = "own_net:net") -> object:
    at.mkdir()
    (at / f"{name.partition(':')[0]}.py").write_text(text)
    patch.syspath_prepend(at)
    return build_model(name, COLOUR, seed=0)


def no_weights(at: Path, patch: pytest.MonkeyPatch, source: str) -> object:
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(at))
    patch.setattr("torch.hub.get_dir", lambda: str(at))
    patch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    return pretrained(source)


MODELS: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], object], str]] = {
    "no folder": (lambda at, _: pretrained(at), "pretrained: neither (not shown) nor resnet18.pth is there"),
    "damaged": (
        lambda at, _: pretrained(written(at, "resnet18.pth", b"x")),
        "pretrained: (not shown) cannot be read: ",
    ),
    "a list": (lambda at, _: pretrained(weights(at, [1])), "pretrained: (not shown) is no state dict: save"),
    "another": (lambda at, _: pretrained(weights(at, {})), "pretrained: (not shown) holds the weights of another"),
    "torchvision": (lambda at, patch: no_weights(at, patch, "torchvision"), "no file (not shown); get it once by"),
    "hub": (lambda at, patch: no_weights(at, patch, "hub"), "of timm/resnet18.tv_in1k in (not shown); get it once by"),
    "own, no import": (
        lambda at, patch: own_model(at, "from json import nothing_like_it", patch, "own_a:net"),
        "cannot import module 'own_a' (ImportError: (not shown)), (not shown), line 1",
    ),
    "own, fails": (
        lambda at, patch: own_model(at, "def net(spec): return open(__file__ + '.txt')", patch, "own_b:net"),
        "classes: FileNotFoundError: (not shown)",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_nor_of_a_model(case, tmp_path, monkeypatch):
    call, line = MODELS[case]
    own, others = told(call, tmp_path / WARD, monkeypatch)
    assert "Brien" in own or case == "own, no import"
    assert line in others
    assert not [secret for secret in SECRETS if secret in others]


def test_nor_of_an_algorithm_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / WARD / "own_algo").mkdir(parents=True)
    (tmp_path / WARD / "own_algo" / "strategy.py").write_text("open(__file__ + '.txt')")
    monkeypatch.syspath_prepend(tmp_path / WARD)
    own, others = told(find, "own_algo")
    assert own.count("Brien") == 2
    assert others == (
        "algorithm module 'own_algo.strategy' cannot be imported: FileNotFoundError: (not shown) ((not shown), line 1)"
    )


@pytest.mark.parametrize("key", ["dataset", "data-dir", "state-dir"])
@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("\0", "it holds a NUL character"),
        ("x" * 256, "a part of it is longer than 255 bytes"),
        ("/loop/x", "(not shown)"),
    ],
)
def test_nor_of_a_key_of_the_node(key, end, why, tmp_path):
    folder = tmp_path / "O'Brien Jane"
    folder.mkdir()
    (folder / "loop").symlink_to("loop")
    own, others = told(for_node, RunConfig(), {key: f"{folder}{end}"})
    assert "Brien Jane" in own
    assert others.startswith(f"{key} = (not shown)")
    assert others.endswith(why)
    assert not [secret for secret in SECRETS if secret in others]


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "csv, twice": (lambda at: load(csv(at, f'"{COLUMN}","{COLUMN}",sick\n1,2,no\n')), "give each column a name of its"),
    "csv, lacking": (
        lambda at: load(csv(at, f'"{COLUMN}",sick\n1,no\n', test="sick\nno\n")),
        "add it, or name it in ignore-columns",
    ),
    "arrow, lacking": (
        lambda at: (
            datasets.DatasetDict(
                train=datasets.Dataset.from_dict({COLUMN: [1, 2], "sick": [0, 1]}),
                test=datasets.Dataset.from_dict({"sick": [0]}),
            ).save_to_disk(at)
            or load(at)
        ),
        "in its split 'test': name it in ignore-columns",
    ),
    "infinite": (lambda at: load(parquet(at, **{COLUMN: [1.0, np.inf, 2.0, 3.0]})), "has an infinite (not shown)"),
    "many texts": (
        lambda at: load(write_parquet(at, train={COLUMN: [f"x{row}" for row in range(80)] * 2, "sick": [0, 1] * 80})),
        "has 80 different values, more than 64: name it in ignore-columns",
    ),
    "nested": (
        lambda at: load(parquet(at, **{COLUMN: [{"Jane": 1}] * 4})),
        "name it in ignore-columns to leave it out",
    ),
    "unlike types": (
        lambda at: (
            datasets.DatasetDict(
                train=datasets.Dataset.from_dict({COLUMN: [1, 2], "sick": [0, 1]}),
                test=datasets.Dataset.from_dict({COLUMN: ["a"], "sick": [0]}),
            ).save_to_disk(at)
            or load(at)
        ),
        "differ in the type of a column",
    ),
    "no label": (lambda at: load(parquet(at, **{COLUMN: [1] * 4}), label_column="ill"), "set label-column to one of"),
    "nearest": (lambda at: load(parquet(at, **{COLUMN: [1] * 4}), label_column=NEAR), "Set label-column to one"),
    "no label named": (
        lambda at: load(parquet(at, **{COLUMN: [1] * 4}), label_column=""),
        "set label-column to one of",
    ),
    "ignored": (
        lambda at: load(parquet(at, **{COLUMN: [1] * 4}), ignore_columns="b"),
        "ignore-columns of '(not shown)'",
    ),
}
"""What a reader refuses that names a column which no key names."""

RECORDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no text": (
        lambda at: load(parquet(at, said=[{"Jane": 1}] * 4), text_column="said"),
        "holds records, not texts: set text-column to one that",
    ),
    "label": (lambda at: load(parquet(at, sick=[{"Jane": 1}] * 4)), "holds records, several labels a row"),
}
"""What a reader refuses that has names within its cells."""


@pytest.mark.parametrize("case", SPOILT)
def test_no_column_is_told_that_no_key_names(case, tmp_path):
    call, line = SPOILT[case]
    own, others = told(call, tmp_path / "folder")
    assert "HIV" in own or "Jane" in own
    assert line in others
    assert not [secret for secret in SECRETS if secret in others]


@pytest.mark.parametrize("case", RECORDS)
def test_what_is_within_cells_is_told_nobody(case, tmp_path):
    call, line = RECORDS[case]
    own, others = told(call, tmp_path / "folder")
    assert line in own
    assert line in others
    assert "Jane" not in own + others
