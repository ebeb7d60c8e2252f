"""Whatever is typed, written into a recipe or lying in a folder: a run that starts, or one line and exit status 2.

Runs stop where they would begin to train. ``HETFL_FUZZ=20`` makes 20 times as many cases as by default, and so do the
exhaustive tests of what lies in folders.
"""

import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from conftest import Done
from datasets import Dataset
from fixtures.tiers import exhaustive
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from hetfl_flwr import models, server_app
from hetfl_flwr.config import RunConfig, read_toml, to_toml
from hetfl_flwr.data import opening
from hetfl_flwr.errors import DataError, HetflError
from hetfl_flwr.methods import find, names
from hetfl_flwr.models import building
from hetfl_flwr.text import printable
from simulations.cli import deploying, results, running
from simulations.cli.command import main
from simulations.engine.run import run_locally
from simulations.studies import jobs, tuning
from simulations.studies.reproduce import command

MORE = int(os.environ.get("HETFL_FUZZ", "1"))
SECONDS = 30
"""That a refusal may take, of this process alone, the imports of a first call included, on a slow machine."""

SMALL = ("--clients", "2", "--set", "models=mlp")
DEEP = 5000
LONG_NUMBER = "9" * 5000


Call = Callable[..., Done]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The working directory, with all that a name of a file can be."""
    folder = tmp_path_factory.mktemp("inputs") / "deep" / "down" / "here"
    folder.mkdir(parents=True)
    (folder / "file").write_text("text\n")
    (folder / "empty").write_text("")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "fifo.toml")
    (folder / "folder.toml").mkdir()
    (folder / "photos" / "a").mkdir(parents=True)
    (folder / "photos" / "a" / "fake.png").write_text("no image")
    os.mkfifo(folder / "photos" / "a" / "pipe.png")
    (folder / "home" / "projects").mkdir(parents=True)
    (folder / "home" / "a.png").write_text("no image")
    for number in range(5000):
        (folder / "home" / "projects" / f"{number}.txt").touch()
    (folder / "table").mkdir()
    (folder / "table" / "rows.csv").write_bytes(b"\xff\xfe\x00,b\n1")
    os.mkfifo(folder / "table" / "pipe.csv")
    (folder / "run").mkdir()
    (folder / "run" / "config.toml").write_text("algorithm = 3\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "skips.py").write_text("import pytest\npytest.importorskip('absent_module')\n")
    (folder / "prints.py").write_text("print('hello')\nfrom torch.nn import Linear, Sequential, Flatten\n" + OWN)
    (folder / "closed").mkdir()
    (folder / "closed" / "strategy.py").write_text("raise SystemExit(4)\n")
    (folder / "closed" / "__init__.py").write_text("")
    return folder


OWN = """
def net(spec):
    return Sequential(Flatten(), Linear(64, spec.classes))
def leaves(spec):
    raise SystemExit(5)
def none():
    pass
def two(spec, other):
    pass
def text(spec):
    return "text"
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run that has ended, with two checkpoints, beside a log of uploads."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    keys = {"algorithm": "fedhe", "models": "mlp", "clients": 2, "rounds": 2, "local-batches": 1, "batch-size": 8}
    noise = {"noise-multiplier": 1.0, "clipping-norm": 1.0, "noise-source": "system"}
    return run_locally({**keys, **noise, "output-dir": str(folder)}, verbose=False, progress=False)


@pytest.fixture(scope="module")
def hetfl(here, finished):
    """Call the command in this process, up to where it would train; what is finished was run before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("HOME", str(here / "home"))
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(server_app, "_federate", lambda *arguments: None)
        for module in (running, deploying):
            patch.setattr(module, "show_run", lambda folder: None)
        patch.setattr(running, "compare", compare_some)
        patch.setattr(jobs, "run_all", lambda *arguments: {})
        patch.setattr(command, "run_all", lambda *arguments: {})
        patch.setattr(tuning, "run_all", lambda trials, *others: {job.folder: jobs.Failed("not run") for job in trials})
        patch.setattr(opening, "_from_hub", no_hub)
        patch.setattr(models, "catalogue_rows", lambda spec: [building._row("mlp", building.ZOO["mlp"], spec)])
        yield lambda *arguments: called(patch, *arguments)


def compare_some(folders: list[Path]) -> None:
    """Compare run folders; those of a sweep are not there, for nothing is run."""
    if all((folder / "rounds.jsonl").exists() for folder in folders) or not any("=" in one.name for one in folders):
        results.compare(folders)


def no_hub(name: str) -> None:
    raise DataError(f"cannot load {name} from the hub")


UNFINISHED = {"watch": ", stopped; ", "reproduce": "no run of it is recorded"}
"""What commands print that end with status 1: for a folder that another has begun, and for a table without runs."""


def called(patch: pytest.MonkeyPatch, *arguments: object) -> Done:
    patch.setattr(sys, "argv", ["hetfl", *map(str, arguments)])
    out, err, started = io.StringIO(), io.StringIO(), time.process_time()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main()
    taken = time.process_time() - started
    shutil.rmtree("runs", ignore_errors=True)
    done = Done(ended.value.code or 0, out.getvalue(), err.getvalue())
    unfinished = arguments[0] in UNFINISHED and UNFINISHED[arguments[0]] in done.out
    assert done.status in (0, 2) or (unfinished and done.status == 1), done
    assert "Traceback" not in done.err
    if done.status == 2:
        assert done.err.startswith("hetfl: "), done
        assert done.err.count("\n") == 1, done
        said = done.err[len("hetfl: ") : -1]
        assert printable(said) == said
        assert taken < SECONDS, (arguments, done.err)
    return done


LONG = "x" * 300
SETTINGS = {
    'dataset="./a\\u0000b"': "NUL",
    'state-dir="a\\u0000b"': "state-dir",
    'label-column="a\\u0000b"': "label-column",
    f"state-dir={'é' * 200}": "255 bytes",
    f"state-dir={'x/' * 3000}": "4095 bytes",
    f"label-column={'x' * 100_001}": "label-column",
    "state-dir=loop/x": "symlink loop",
    f"rounds={LONG_NUMBER}": "rounds",
    f"rounds=0x{'f' * 5000}": "64 bits",
    f"rounds={'[' * DEEP}": "rounds",
    f"vocabulary=hashed:{LONG_NUMBER}": "vocabulary",
    "image-size=8192": "image-size",
    f"device=cuda:{LONG_NUMBER}": "device",
    "fedproto.predict=prototype": "fedproto.predict",
    "models=sys:exit": "'sys:exit'",
    "models=torch._C:_cuda_init": "DataSpec",
    "models=prints:two": "DataSpec",
    "models=skips:net": "'skips'",
    'models="\\u001b[31mred"': "'\\x1b[31mred'",
    'dataset="two\\nlines"': "two\\nlines",
    'algorithm="fed\\u202ehe"': "fed\\u202ehe",
    "dataset=../../etc": "etc",
    "dataset=/proc/self/mem": "/proc/self/mem",
    "dataset=./fifo": "fifo",
    "dataset=/": "'/'",
    "dataset=~": "home'",
    "output-dir=file/run": "file/run",
    **{f"{key}=1000000000000": key for key in ("clients", "threads", "rounds", "batch-size", "text-length", "width")},
}
"""Settings by which no run can be, and what the line that says so names."""

RECIPES = {
    "nested": (b"rounds = " + b"[" * DEEP, "nested"),
    "nested tables": (b"a" + b".a" * DEEP + b" = 1", "nested"),
    "long number": (f"rounds = {LONG_NUMBER}".encode(), "TOML"),
    "long hexadecimal number": (b"rounds = 0x" + b"f" * 5000, "rounds"),
    "binary": (bytes(range(256)), "TOML"),
    "NUL": (b'dataset = "a\\u0000b"', "dataset"),
    "date": (b"rounds = 2020-01-01", "rounds is date"),
    "array of tables": (b"[[rounds]]\n[[rounds]]", "rounds is list"),
    "unknown key": (b"[fedhe]\nalfa = 1", "'fedhe.alpha'"),
    "nothing between dots": (b'[""]\nx = 1', "''"),
    "large": (b"#" * 2**21, "1048576 bytes"),
}

NAMES = {
    "binary": "TOML",
    "none.toml": "none.toml",
    "fedhe-digit": "did you mean 'fedhe-digits'?",
    "folder": "is a folder",
    "fifo": "a pipe",
    "/dev/zero": "a device",
    "loop": "symlink loop",
    "file/x": "Not a directory",
    "none\x1b[0m": "none\\x1b[0m",
    "a\0b": "NUL",
    "\udcff": "UTF-8",
    "": "empty",
}

COMMANDS = {
    "unknown command": (["lst"], "'list'"),
    "type of an option": (["run", "fedhe", "--rounds", "many"], "'many'"),
    "data-dir of a fifo": (["run", "fedhe", "--dataset", "mnist", "--data-dir", "fifo"], "fifo"),
    "resume without --out": (["run", "fedhe", "--resume"], "--out"),
    "workers": (["run", "fedhe", "--workers", "1000000"], "--workers"),
    "algorithm": (["run", "a\0b"], "NUL"),
    "algorithm of Python": (["run", "this"], "'this'"),
    "package of Python": (["run", "os.path"], "os.path"),
    "algorithm that exits": (["run", "closed"], "SystemExit: 4"),
    "empty sweep": (["run", "fedhe", "--out", "s", "--sweep", ""], "--sweep"),
    "sweep twice": (["run", "fedhe", "--out", "s", "--sweep", "rounds=1,2", "--sweep", "rounds=1"], "rounds"),
    "sweep": (["run", "fedhe", "--out", "s", "--sweep", "seed=0:100000000000"], "10000"),
    "large sweep": (["run", "fedhe", "--out", "s", "--sweep", "seed=0:999 rounds=1:999"], "997002"),
    "sweep over NUL": (["run", "fedhe", "--out", "s", "--sweep", "data-dir=a\0b"], "NUL"),
    "compare": (["compare", "fifo"], "fifo"),
    "compare of a wrong run": (["compare", "run"], "run/config.toml"),
    "report": (["report", "loop"], "symlink loop"),
    "report into a circle": (["report", "run", "--out", "loop"], "loop"),
    "run into a circle": (["run", "fedhe", *SMALL, "--out", "loop"], "loop"),
    "report to a pipe": (["report", "run", "--out", "fifo"], "fifo"),
    "audit": (["audit", "none"], "none"),
    "export": (["export", "folder", "--client", "0", "--out", "x.onnx"], "folder"),
    "export of a client": (["export", "run", "--client", LONG_NUMBER, "--out", "x.onnx"], "hetfl: "),
    "picture to nowhere": (["partition", "--clients", "2", "--out", "file/x.png"], "file/x.png"),
    "picture of no kind": (["partition", "--clients", "2", "--out", "split.doc"], "'doc'"),
    "list of models as TOML": (["list", "models", "--toml"], "--toml"),
    "list into nothing": (["list", "keys", "--into", "none.toml"], "none.toml"),
    "list of a folder": (["list", "datasets", "--data-dir", "fifo"], "fifo"),
    "reproduce": (["reproduce", "a\0b.toml"], "'a\\x00b.toml'"),
    "reproduce a fifo": (["reproduce", "fifo.toml"], "fifo.toml"),
    "reproduce seeds": (["reproduce", "leaderboard", "--seeds", "1000"], "--seeds"),
    "tune a seed": (["tune", "fedhe", *SMALL, "--set", "seed=1", "--out", "t"], "--seeds"),
    "tune over nothing": (["tune", "fedhe", *SMALL, "--over", "learning-rate", "--out", "t"], "learning-rate"),
    "tune another": (["tune", "fedhe", *SMALL, "--over", "fedprox.mu=0.1:1", "--out", "t"], "'fedprox.mu'"),
    "new": (["new", "../../etc"], "../../etc"),
    "new and odd": (["new", "a\0b"], "a\\x00b"),
    "keys": (["keys", "--host", "a\0b", "--out", "k"], "'a\\x00b'"),
    "keys into a file": (["keys", "--host", "a", "--out", "file"], "file"),
    "keys of millions": (["keys", "--host", "a", "--out", "k", "--nodes", "1000000000"], "--nodes"),
    "poll": (["supernode", "--poll", "0"], "--poll"),
    "keep": (["supernode", "--keep", "warm"], "--keep"),
    "node config": (["supernode", "--insecure", "--node-config", "model=mlp"], "--node-config"),
    "no node config": (["supernode", "--insecure", "--node-config", "/no/node.toml"], "/no/node.toml"),
    "unknown flag of a node": (["supernode", "--por", "1"], "--por 1"),
}


def refusals() -> Iterator[object]:
    """Give each command line that is refused, with the file that it reads and what the line names."""
    for value, named in SETTINGS.items():
        yield pytest.param(["run", "fedhe", *SMALL, "--set", value], b"", named, id=ascii(value[:40]))
    for case, (content, named) in RECIPES.items():
        yield pytest.param(["run", "fedhe", *SMALL, "--recipe", "bad.toml"], content, named, id=f"recipe {case}")
    for name, named in NAMES.items():
        yield pytest.param(["run", "fedhe", *SMALL, "--recipe", name], b"", named, id=f"recipe {name[:40]!a}")
    for case, (arguments, named) in COMMANDS.items():
        yield pytest.param(arguments, b"", named, id=case)


@pytest.mark.parametrize(("arguments", "recipe", "named"), [*refusals()])
def test_what_cannot_be_is_one_line_that_names_it_and_leaves_nothing_behind(arguments, recipe, named, hetfl, here):
    (here / "bad.toml").write_bytes(recipe)
    before = {*os.listdir(here), "__pycache__"}
    done = hetfl(*arguments)
    assert (done.status, named in done.err) == (2, True), done.err
    assert {*os.listdir(here), "__pycache__"} == before


GENERAL = [key for key in RunConfig().to_flat() if key != "algorithm"]
OWN_KEYS = [f"{name}.{key}" for name in names() for key in find(name).defaults]
TEXTS = (
    *("", " ", ".", "..", "/", "~", "~x/y", "./nope", "../../etc", "a/b", "a/b/c", "-", "--", "=", ",", ":", "'", '"'),
    *("[x]", "digits", "rotated-digits", "breast-cancer", "digits,digits", "digits,breast-cancer"),
    *("rotated-rotated-digits", "file", "folder", "./folder", "./fifo", "./photos", "./table", "binary", "loop"),
    *("/dev/null", "/proc/self/mem", "mlp", "lenet5", "mlp,", "fedhe", "tabular:4", "sys:exit", "os:abort"),
    *("leaves:net", "prints:net", "prints:leaves", "iid", "all", "linear", "classes:2", "shards:9", "classes:0"),
    *("dirichlet:1e-9", "dirichlet:nan", "natural:x", "slices:0.5", "hashed:3", "shared:99999999999", "median"),
    *("trimmed:0.1", "trimmed:nan", "cuda:0", "cuda:99", "mps", "1,1,20", "0", "-1", "1e400", "-0.0", "nan", "inf"),
    *("true", "1_0", "0x10", "2020-01-01", "9" * 20, LONG_NUMBER, "[1]", "{}", "[" * 40, "[" * DEEP, "x" * 300),
    *("é" * 200, "x/" * 3000, "a\nb", "a\rb", "\x1b[31m", "a\u202eb", "a\0b", '"a\\u0000b"', "'a", "\udcff", "😀"),
    *("٣", "{spec}", "%s", "$HOME", "a;b", "a=b"),
)
LENGTHS = (*range(-2, 12), 64, 1000, 2**31 - 1, 2**31, 2**63, 10**9, 10**30)
some_text = st.sampled_from(TEXTS) | st.text(max_size=12)
values = st.one_of(
    some_text,
    st.sampled_from(LENGTHS).map(str),
    st.floats().map(str),
    st.booleans().map(lambda value: str(value).lower()),
)
keys = st.one_of(st.sampled_from(GENERAL), st.sampled_from(GENERAL), st.sampled_from(OWN_KEYS), st.sampled_from(TEXTS))


def fuzz(cases: int) -> settings:
    unchecked = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(suppress_health_check=unchecked, deadline=None, max_examples=cases * MORE)


def inside(here: Path, text: str) -> bool:
    """Return whether a name leads to a place that this test may write to."""
    try:
        place = Path(os.path.normpath(here / Path(text).expanduser()))
    except RuntimeError:
        return True
    return place.is_relative_to(here.parents[2])


def tried(here: Path, key: str, value: str) -> bool:
    """Return whether a setting is tried: not one that is right and makes many clients or large inputs."""
    if (key, value) in [("clients", "1000"), ("image-size", "1000"), ("public-fraction", "1000")]:
        return False
    return key not in ("output-dir", "state-dir") or inside(here, value.strip())


@pytest.mark.slow
@fuzz(150)
@given(st.sampled_from(names()), st.lists(st.tuples(keys, values), min_size=1, max_size=3))
def test_any_setting_is_taken_or_refused(hetfl, here, algorithm, chosen):
    flags = [f"{key}={value}" for key, value in chosen if tried(here, key, value)]
    hetfl("run", algorithm, *SMALL, *(part for flag in flags for part in ("--set", flag)))


@fuzz(60)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
def test_any_file_is_taken_or_refused_as_a_recipe(hetfl, here, content):
    (here / "any.toml").write_bytes(content)
    hetfl("run", "fedhe", *SMALL, "--recipe", "any.toml")
    hetfl("reproduce", "any.toml", "--out", "tables")


READS = (
    *("compare -- {}", "compare --measure={} run", "export --out=x.onnx --client=0 -- {}", "audit -- {}"),
    *(
        "audit run --device={}",
        "audit run --shadows={}",
        "watch --once -- {}",
        "predict -- run {}",
        "predict -- {} file",
    ),
    *("predict run file --client={}", "partition SMALL --dataset={}", "run fedhe SMALL --out=sweep --sweep={}"),
    *("run fedhe SMALL --out=sweep --sweep=seed={}", "run fedhe --resume --out={}", "run SMALL -- {}"),
    *("run fedhe SMALL --out=study --against={}", "tune fedhe SMALL --out=tuned --trials={}"),
    *("list datasets --data-dir={}", "predict -- {} file"),
    *("reproduce --out=tables -- {}", "reproduce fedhe-figure1 --out=tables --set={}", "new -- {}", "{}"),
    "keys --host={} --out=keys",
)
WRITES = (
    *("report --out={} run", "export --out={} --client=0 folder", "partition SMALL --out={}", "keys --host=x --out={}"),
    "run fedhe SMALL --out={} --sweep=seed=1",
)
"""Command lines that take any text, and those that write where it says."""


@fuzz(120)
@given(st.sampled_from(READS + WRITES), some_text)
@example("reproduce --out=tables -- {}", "all")
def test_any_argument_is_taken_or_refused(hetfl, here, line, text):
    if line in READS or inside(here, text):
        hetfl(*(part.replace("{}", text) for part in line.replace("SMALL", " ".join(SMALL)).split(" ")))


@fuzz(300)
@given(
    st.dictionaries(
        keys | st.just("my_pkg.sub.algo.beta"),
        st.one_of(some_text, st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers(), max_size=2)),
        max_size=4,
    )
)
def test_any_flat_config_is_taken_and_written_or_refused(tmp_path_factory, flat):
    try:
        config = RunConfig.from_flat(flat)
    except HetflError:
        return
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_text(to_toml(config.to_flat()), encoding="utf-8")
    assert typed(RunConfig.from_flat(read_toml(path))) == typed(config)


def typed(config: RunConfig) -> dict[str, tuple[type, object]]:
    """1, 1.0 and True are equal in Python, and are not the same setting."""
    return {key: (type(value), value) for key, value in config.to_flat().items()}


NONSENSE = (
    *(b"", b"\0", b"\xff\xfe", b"1e400", b"null", b"true", b"[]", b"{}", b'{"a":', b"\n\n", b"-1", b'"x"', b"NaN"),
    *(b"Infinity", b"9" * 5000, b"[" * DEEP, bytes(range(256)), b"nonsense\n", b"PAR1", b"\x89PNG\r\n\x1a\n"),
    b"\xff\xd8\xff",
)
WAYS = ("cut", "flipped", "line removed", "line twice", "put in", "replaced", "number replaced", "removed", "a folder")
damages = st.tuples(st.sampled_from(WAYS), st.floats(0, 1, exclude_max=True), st.sampled_from(NONSENSE))


def damage(path: Path, way: str, where: float, nonsense: bytes) -> None:
    """Change a file in some way, at a place that is a fraction of it."""
    content = path.read_bytes()
    at, lines = int(where * len(content)), content.splitlines(keepends=True)
    line, numbers = int(where * len(lines)), [*re.finditer(rb"-?\d+(?:\.\d+)?", content)]
    if way == "cut":
        content = content[:at]
    elif way == "flipped" and content:
        content = content[:at] + bytes([content[at] ^ 1 << len(nonsense) % 8]) + content[at + 1 :]
    elif way == "line removed":
        content = b"".join(lines[:line] + lines[line + 1 :])
    elif way == "line twice":
        content = b"".join(lines[: line + 1] + lines[line:])
    elif way == "put in":
        content = content[:at] + nonsense + content[at:]
    elif way == "number replaced" and numbers:
        number = numbers[int(where * len(numbers))]
        content = content[: number.start()] + nonsense + content[number.end() :]
    elif way == "replaced":
        content = nonsense
    if way in ("removed", "a folder"):
        path.unlink()
    else:
        path.write_bytes(content)
    if way == "a folder":
        path.mkdir()


def damaged_copy(here: Path, source: Path, place: float, how: tuple[str, float, bytes]) -> None:
    """Copy a folder into the working directory, and change one of its files."""
    shutil.rmtree(here / "copy", ignore_errors=True)
    shutil.copytree(source, here / "copy")
    files = sorted(path for path in (here / "copy").rglob("*") if path.is_file())
    damage(files[int(place * len(files))], *how)


READERS = (
    ("report", "copy"),
    ("compare", "copy"),
    ("compare", "copy", "whole"),
    ("run", "fedhe", "--resume", "--out", "copy"),
    ("run", "fedhe", "--resume", "--rounds", "4", "--out", "copy"),
    ("run", "fedhe", "--resume", "--rounds", "4", "--accept-loss", "--out", "copy"),
    ("export", "copy", "--client", "0", "--out", "x.onnx"),
)


def write_own_data(folder: Path) -> None:
    """Write the same few rows as files of each form, and a few images."""
    rows = {"age": list(range(40)), "kind": [f"k{n % 3}" for n in range(40)], "label": [n % 2 for n in range(40)]}
    for form, write in (("csv", Dataset.to_csv), ("json", Dataset.to_json), ("parquet", Dataset.to_parquet)):
        (folder / form).mkdir(parents=True)
        for split in ("train", "test"):
            write(Dataset.from_dict(rows), folder / form / f"{split}.{form}")
    for number in range(20):
        path = folder / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)


parts = st.floats(0, 1, exclude_max=True)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, exhaustive(10)])
def test_a_damaged_run_is_read_or_refused(hetfl, here, finished, times):
    shutil.copytree(finished, here / "whole", dirs_exist_ok=True)

    @fuzz(10 * times)
    @given(st.sampled_from(READERS), parts, damages)
    def each(command, place, how):
        damaged_copy(here, finished, place, how)
        hetfl(*command)

    each()


@pytest.mark.parametrize("times", [1, exhaustive(10)])
def test_damaged_data_are_read_or_refused(hetfl, here, times, tmp_path):
    write_own_data(tmp_path)

    @fuzz(6 * times)
    @given(st.sampled_from(["csv", "json", "parquet", "images"]), parts, damages)
    def each(form, place, how):
        damaged_copy(here, tmp_path / form, place, how)
        label = [] if form == "images" else ["--set", "label-column=label"]
        hetfl("partition", *SMALL, "--dataset", "./copy", *label)

    each()
