"""What a node without internet needs, as one archive: wheels, keys, settings, a unit, and a script that installs."""

import json
import platform
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from shutil import copyfile

from packaging.version import InvalidVersion, Version

from hetfl_flwr.common.errors import ConfigError, unknown
from hetfl_flwr.config import RunConfig, Value, for_node
from hetfl_flwr.server.admission.node_keys import read_node_keys
from simulations.deployment.keys import Keys
from simulations.deployment.supernode import read_node_config

ROOT = Path(__file__).parents[2]
"""Where the project's pyproject.toml lies, of which a wheel is built: this needs a checkout."""

UNIT = "flower-supernode@.service"

INSTALL = """\
#!/bin/sh
# Installs node {number} from the files beside this, without internet; with DESTDIR, below that folder alone.
set -eu
cd "$(dirname "$0")" && root="${{DESTDIR:-}}"
"${{PYTHON:-python{python}}}" -m venv --clear "$root/opt/hetfl"
"$root/opt/hetfl/bin/pip" install --compile --no-index --find-links wheels "{project}"
mkdir -p "$root/etc/hetfl" "$root/etc/systemd/system"
install -m 644 ca.crt node-{number}.env "$root/etc/hetfl/"
install -m 600 node-{number} "$root/etc/hetfl/"
install -m 644 {unit} "$root/etc/systemd/system/"
[ -z "$root" ] || exit 0
id hetfl > /dev/null 2>&1 || useradd --system --home-dir /var/lib/hetfl --shell /usr/sbin/nologin hetfl
chown hetfl /etc/hetfl/node-{number}
systemctl daemon-reload && systemctl enable flower-supernode@{number} && systemctl restart flower-supernode@{number}
"""

_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(\w+)")
_OLD = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}
_MISSING = re.compile(r"No matching distribution found for (\S+)")


@dataclass(frozen=True)
class Target:
    """The machine for which wheels are looked for.

    Parameters
    ----------
    platforms : tuple of str
        Its platform tags, such as ``manylinux_2_28_aarch64``, which stands for all older ones, too. By default those
        of this machine.
    python : str
        Its version of Python, such as ``3.11``. By default that of this Python.
    """

    platforms: tuple[str, ...] = ()
    python: str = ""

    @property
    def version(self) -> str:
        """The version of Python there."""
        return self.python or ".".join(platform.python_version_tuple()[:2])

    @property
    def options(self) -> list[str]:
        """What pip is told of it; wheels alone are taken, as the node may have no compiler."""
        named = [f"--platform={tag}" for tag in dict.fromkeys(tag for each in self.platforms for tag in _older(each))]
        return ["--only-binary=:all:", *named, *([f"--python-version={self.python}"] if self.python else [])]

    def __str__(self) -> str:
        """Return it in words."""
        return f"{', '.join(self.platforms) or 'this machine'} with Python {self.version}"


def _older(tag: str) -> list[str]:
    """Return a platform tag and those whose wheels run there as well, newest first."""
    if not (found := _MANYLINUX.fullmatch(tag)):
        return [tag]
    newest, processor = int(found[1]), found[2]
    numbered = [f"manylinux_2_{number}_{processor}" for number in range(newest, 4, -1)]
    named = [f"{name}_{processor}" for name, number in _OLD.items() if number <= newest]
    return [*numbered, *named, f"linux_{processor}"]


def make_bundle(
    number: int,
    out: Path,
    keys: Keys,
    superlink: str,
    *,
    settings: str = "",
    target: Target = Target(),
    sources: Sequence[str] = (),
    constraints: Path | None = None,
    extras: Sequence[str] = (),
    project: Path = ROOT,
) -> list[str]:
    """Write the archive of one node, readable by its owner alone, and return the names of the wheels in it.

    Parameters
    ----------
    number : int
        Which node; its key is in the folder of keys.
    out : Path
        The archive, a ``.tar.gz``, which must not be there yet. It appears whole.
    keys : Keys
        What ``hetfl keys`` has made.
    superlink : str
        HOST:PORT by which the node calls the server.
    settings : str
        More of the node's config, as ``--node-config`` takes it; goes before what is set here.
    target : Target
        The node's machine.
    sources : sequence of str
        pip's options that say where wheels are: ``--find-links``, ``--no-index``. By default its index.
    constraints : Path, optional
        Versions to take, as a file of pip's constraints. By default those that are installed here.
    extras : sequence of str
        What the node is to have beyond what every node needs, such as ``simulation``.
    project : Path
        The checkout.

    Raises
    ------
    ConfigError
        Keys that are missing, settings that are wrong, an unknown extra, no checkout, an archive that is there or has
        no folder, or a wheel that is not to be had for the node's machine.
    """
    if not (project / "pyproject.toml").is_file():
        raise ConfigError(f"no project in {project}: a bundle is made in a checkout of the repository")
    offered = tomllib.loads((project / "pyproject.toml").read_text())["project"].get("optional-dependencies", {})
    if wrong := [extra for extra in extras if extra not in offered]:
        raise ConfigError(unknown("extra", wrong[0], offered))
    if out.exists():
        raise ConfigError(f"{out} is there already: name a new file")
    if not out.parent.is_dir():
        raise ConfigError(f"{out} cannot be written: {out.parent} is no folder")
    if constraints is not None and not constraints.is_file():
        raise ConfigError(f"{constraints}: is no file, expected pip's constraints")
    needed = (keys.ca, keys.node(number), keys.list)
    if missing := [path.name for path in needed if not path.is_file()]:
        raise ConfigError(
            f"{keys.folder} lacks {', '.join(missing)}: make them there by `hetfl keys --nodes {number + 1}`"
        )
    environment = _environment(number, len(read_node_keys(keys.list)), superlink, settings)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / f"node-{number}"
        wheels = folder / "wheels"
        wheels.mkdir(parents=True)
        own = _build(project, wheels, sources)
        wanted = f"[{','.join(extras)}]" if extras else ""
        fixed = constraints or _installed(Path(temporary) / "constraints.txt")
        _download(f"{own}{wanted}", wheels, target, sources, fixed)
        for path in (keys.ca, keys.node(number), Path(__file__).parent / "systemd" / UNIT):
            copyfile(path, folder / path.name)
        (folder / f"node-{number}.env").write_text(environment)
        name = own.name.partition("-")[0]
        script = INSTALL.format(number=number, python=target.version, project=f"{name}{wanted}", unit=UNIT)
        (folder / "install.sh").write_text(script)
        _pack(folder, Path(temporary) / "whole").rename(out)
        return sorted(path.name for path in wheels.iterdir())


def _environment(number: int, nodes: int, superlink: str, settings: str) -> str:
    """Return the settings of the unit.

    Raises
    ------
    ConfigError
        A node config that Flower or this project does not take, or that the file cannot hold.
    """
    config: dict[str, Value] = {
        "partition-id": number,
        "num-partitions": nodes,
        "partition": "all",
        "state-dir": f"/var/lib/hetfl/node-{number}/state",
        **read_node_config(settings),
    }
    for_node(RunConfig(), config)
    if config["partition-id"] != number:
        raise ConfigError(f"--node-config: partition-id = {config['partition-id']}, but --node is {number}")
    text = " ".join(f"{key}={json.dumps(value, ensure_ascii=False, allow_nan=False)}" for key, value in config.items())
    if {"'", "\\"} & {*text, *superlink}:
        raise ConfigError("--node-config: a settings file of systemd holds no single quote and no backslash")
    return f"SUPERLINK={superlink}\nPORT=9094\nNODE_CONFIG='{text}'\n"


def _build(project: Path, wheels: Path, sources: Iterable[str]) -> Path:
    """Build the project's own wheel."""
    _pip("wheel", "--no-deps", f"--wheel-dir={wheels}", *sources, str(project), failure=f"no wheel of {project}")
    [own] = wheels.glob("*.whl")
    return own


def _download(own: str, wheels: Path, target: Target, sources: Iterable[str], constraints: Path) -> None:
    """Fetch the wheels of all that the project needs."""
    where = [f"--dest={wheels}", f"--constraint={constraints}", *target.options]
    _pip("download", *where, *sources, own, failure=f"not all wheels are to be had for {target}")


def _pip(*command: str, failure: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command], capture_output=True, text=True, check=False, cwd=Path.home()
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        found = _MISSING.search(done.stderr)
        reason = f"none of {found[1]}" if found else lines[-1].removeprefix("ERROR:").strip() if lines else "pip failed"
        raise ConfigError(f"{failure}: {reason}")


def _installed(path: Path) -> Path:
    """Write the versions of all packages that are installed here, as constraints: nodes are to have equal ones."""
    versions = {}
    for each in distributions():
        try:
            versions[each.metadata["Name"]] = Version(each.version).public  # without +cpu, +cu130
        except (InvalidVersion, TypeError):
            continue
    versions.pop("hetfl", None)
    path.write_text("".join(f"{name}=={number}\n" for name, number in sorted(versions.items()) if name))
    return path


def _pack(folder: Path, archive: Path) -> Path:
    """Pack a folder; a private key in it, and the archive, are their owner's alone."""
    archive.touch(mode=stat.S_IRUSR | stat.S_IWUSR)

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        private = entry.name == f"{folder.name}/{folder.name}"
        entry.mode = 0o755 if entry.isdir() or entry.name.endswith(".sh") else 0o600 if private else 0o644
        return entry

    with tarfile.open(archive, "w:gz", compresslevel=0) as file:  # wheels are compressed already
        file.add(folder, arcname=folder.name, filter=owned)
    return archive
