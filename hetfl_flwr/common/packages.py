"""Which packages Python finds: those of this project, and those of its extras."""

import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from hetfl_flwr.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
"""The folder of this project's packages."""

EXTRAS = {
    **dict.fromkeys(("ray", "sklearn"), "simulation"),
    **dict.fromkeys(("jinja2", "matplotlib"), "reports"),
    **{
        "dp_accounting": "accounting",
        "mlflow": "mlflow",
        "onnxscript": "onnx",
        "openpyxl": "xlsx",
        "optuna": "tune",
    },
    **{"prometheus_client": "prometheus", "tensorboard": "tensorboard", "wandb": "wandb"},
}
"""Which extra installs a package that not every node needs, by the name that it is imported by."""

_IMPORTED = {"pillow": "PIL"}


def lacking(error: BaseException) -> ConfigError | None:
    """Return a message for the user where an error says that a package of an extra is not installed."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    wanted = f"hetfl[{EXTRAS[package]}]" if package in EXTRAS else _required().get(package)
    return ConfigError(f"{package} is not installed: pip install '{wanted}'") if wanted else None


def _required() -> dict[str, str]:
    """Return this project's requirements by import name."""
    try:
        lines = [line for line in requires("hetfl") or [] if ";" not in line]
    except PackageNotFoundError:  # an app bundle on a node that has none
        return {}
    return {_IMPORTED.get(name := re.split(r"[^\w-]", line)[0], name.replace("-", "_")): line for line in lines}


def own_package(name: str) -> ModuleType:
    """Import one of this project's packages; no code of another package of that name is run.

    Raises
    ------
    ConfigError
        It is not there, as in an app bundle; or a package or a module of that name comes before it on Python's path:
        names both places.
    """
    if not (ROOT / name).is_dir():
        raise ConfigError(f"{name} is missing: {ROOT} is an app bundle, made for `flwr run`; install hetfl")
    spec = find_spec(name)
    places = [] if spec is None else [*(spec.submodule_search_locations or [str(spec.origin)])]
    found = next(iter(places), "nowhere")
    if Path(found).resolve() != ROOT / name:
        raise ConfigError(
            f"the package '{name}' of this project ({ROOT / name}) is hidden by {found}: rename "
            "that, or take the folder that it lies in out of PYTHONPATH"
        )
    return import_module(name)


def working_directory_last() -> None:
    """Append the working directory to Python's path, so that models and algorithms there are found.

    As it comes last, a folder there hides no installed package of the same name.
    """
    here = Path.cwd()
    if here != ROOT:
        sys.path[:] = [*(place for place in sys.path if Path(place or ".").resolve() != here), str(here)]
