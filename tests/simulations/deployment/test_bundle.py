"""`hetfl bundle`: an archive is whole, installs where there is no index, and what is missing is one line."""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from hetfl_flwr.common.errors import ConfigError
from simulations.deployment.bundle import Target, make_bundle
from simulations.deployment.keys import Keys, make_keys

HERE = Target()

BACKEND = """
import sys
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    wheel = next(Path(__file__).parent.glob("*.whl"))
    (Path(folder) / wheel.name).write_bytes(wheel.read_bytes())
    return wheel.name
"""


def write_wheel(folder: Path, name: str, version: str = "2.0", tag: str = "py3-none-any", *requires: str) -> Path:
    """Write a wheel of one module, which says its version."""
    info = f"{name}-{version}.dist-info"
    needs = "Provides-Extra: more\n" + "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that is built without an index, and needs one package."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "hetfl"\nversion = "2.0"\noptional-dependencies = { more = ["small"] }\n'
    )
    (folder / "backend.py").write_text(BACKEND)
    write_wheel(folder, "hetfl", "2.0", "py3-none-any", "tiny>=2", 'small; extra == "more"')
    return folder


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(tmp_path / "keys")
    make_keys(made.folder, ["localhost"], 4)
    return made


@pytest.fixture
def links(tmp_path: Path) -> Path:
    folder = tmp_path / "links"
    folder.mkdir()
    return folder


def bundled(
    project: Path,
    keys: Keys,
    links: Path,
    number: int = 3,
    *,
    settings: str = "",
    target: Target = HERE,
    constraints: Path | None = None,
    extras: Sequence[str] = (),
) -> list[str]:
    return make_bundle(
        *(number, project.parent / f"node-{number}.tar.gz", keys, "server.example.org:8443"),
        settings=settings,
        target=target,
        sources=["--no-index", f"--find-links={links}"],
        constraints=constraints,
        extras=extras,
        project=project,
    )


@pytest.mark.slow
def test_a_bundle_installs_where_there_is_no_index(project: Path, keys: Keys, links: Path, tmp_path: Path) -> None:
    """And does not where one of its wheels is taken out: nothing comes from elsewhere."""
    write_wheel(links, "tiny")
    wheels = bundled(project, keys, links, settings='model="mlp" state-dir="/data"')
    assert wheels == ["hetfl-2.0-py3-none-any.whl", "tiny-2.0-py3-none-any.whl"]
    archive = tmp_path / "node-3.tar.gz"
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as file:
        modes = {entry.name: entry.mode for entry in file if entry.isfile()}
        file.extractall(tmp_path / "node", filter="tar")
    assert [name for name, mode in modes.items() if not mode & 0o004] == ["node-3/node-3"]
    folder, root = tmp_path / "node" / "node-3", tmp_path / "root"
    assert len((folder / "install.sh").read_text().splitlines()) <= 15
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    offers = tmp_path / "index" / "tiny" / "index.html"  # which is not asked
    offers.parent.mkdir(parents=True)
    offers.write_text(f'<a href="{write_wheel(links, "tiny", "3.0").as_uri()}">tiny-3.0-py3-none-any.whl</a>')
    index = offers.parents[1].as_uri()
    known |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "PYTHON": sys.executable}

    def install(root: Path) -> subprocess.CompletedProcess[str]:
        environment = known | {"DESTDIR": str(root)}
        return subprocess.run([folder / "install.sh"], env=environment, capture_output=True, text=True, check=False)

    done = install(root)
    assert done.returncode == 0, done.stderr
    assert list(root.glob("opt/hetfl/lib/python*/site-packages/__pycache__/tiny.*.pyc"))
    code = "import hetfl, tiny; print(tiny.version)"
    said = subprocess.check_output([root / "opt/hetfl/bin/python", "-c", code], env=known, cwd=tmp_path)
    assert said == b"2.0\n"
    files = {path.name: path for path in (root / "etc").rglob("*") if path.is_file()}
    assert files.keys() == {"ca.crt", "node-3", "node-3.env", "flower-supernode@.service"}
    assert files["node-3"].read_bytes() == keys.node(3).read_bytes()
    assert files["node-3"].stat().st_mode & 0o777 == 0o600
    variables = dict(line.split("=", 1) for line in files["node-3.env"].read_text().splitlines())
    assert variables["SUPERLINK"] == "server.example.org:8443"
    assert parse_config_args(shlex.split(variables["NODE_CONFIG"])) == {
        "partition-id": 3,
        "num-partitions": 4,
        "partition": "all",
        "state-dir": "/data",
        "model": "mlp",
    }
    assert set(re.findall(r"\$\{(\w+)\}", files["flower-supernode@.service"].read_text())) <= variables.keys()
    (folder / "wheels" / "tiny-2.0-py3-none-any.whl").unlink()
    assert "No matching distribution found for tiny" in install(tmp_path / "other").stderr


def test_wheels_are_those_of_the_nodes_machine(project: Path, keys: Keys, links: Path) -> None:
    """Of an older libc, too, and of no other processor."""
    target = Target(("manylinux_2_28_aarch64",), "3.12")
    write_wheel(links, "tiny", tag="cp312-cp312-manylinux_2_28_x86_64")
    with pytest.raises(ConfigError, match=r"^not all wheels .* manylinux_2_28_aarch64 with Python 3\.12: none of tiny"):
        bundled(project, keys, links, target=target)
    assert not list(project.parent.glob("*.tar.gz"))
    assert not list(project.parent.glob(".node*"))
    for tag in ("cp312-cp312-manylinux2014_aarch64", "cp312-cp312-manylinux_2_34_aarch64"):
        write_wheel(links, "tiny", tag=tag)
    assert "tiny-2.0-cp312-cp312-manylinux2014_aarch64.whl" in bundled(project, keys, links, target=target)


def test_versions_are_those_of_the_constraints(project: Path, keys: Keys, links: Path, tmp_path: Path) -> None:
    for version in ("2.0", "2.1"):
        write_wheel(links, "tiny", version)
    (tmp_path / "constraints.txt").write_text("tiny==2.0\n")
    assert "tiny-2.0-py3-none-any.whl" in bundled(project, keys, links, constraints=tmp_path / "constraints.txt")
    assert "tiny-2.1-py3-none-any.whl" in bundled(project, keys, links, 2)


def test_an_extra_is_in_the_archive_and_installed(project: Path, keys: Keys, links: Path, tmp_path: Path) -> None:
    write_wheel(links, "tiny")
    write_wheel(links, "small")
    assert "small-2.0-py3-none-any.whl" not in bundled(project, keys, links, 2)
    assert "small-2.0-py3-none-any.whl" in bundled(project, keys, links, extras=["more"])
    with tarfile.open(tmp_path / "node-3.tar.gz") as file:
        script = file.extractfile("node-3/install.sh")
        assert script is not None
        assert '--find-links wheels "hetfl[more]"' in script.read().decode()


def test_what_is_missing_or_wrong_is_one_line(project: Path, keys: Keys, links: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks node-7: make them there by `hetfl keys --nodes 8`"):
        bundled(project, keys, links, 7)
    with pytest.raises(ConfigError, match="none of tiny"):
        bundled(project, keys, links)
    with pytest.raises(ConfigError, match="a bundle is made in a checkout"):
        bundled(tmp_path / "project" / "none", keys, links)
    with pytest.raises(ConfigError, match=r"unknown extra 'mor'.*more"):
        bundled(project, keys, links, extras=["mor"])
    with pytest.raises(ConfigError, match="none: is no file"):
        bundled(project, keys, links, constraints=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"none/node-3\.tar\.gz cannot be written: .*none is no folder"):
        make_bundle(3, tmp_path / "none" / "node-3.tar.gz", keys, "localhost:1", project=project)
    for settings, words in (
        ("model=mlp", "texts in double quotes"),
        ("partition-id=2", "partition-id = 2, but --node is 3"),
        ('modle="mlp"', "unknown node-config key 'modle'"),
        ('model="mlp" name="it\'s"', "no single quote"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            bundled(project, keys, links, settings=settings)
    (tmp_path / "node-3.tar.gz").touch()
    with pytest.raises(ConfigError, match="is there already"):
        bundled(project, keys, links)
