"""Check that Python finds this project's packages and those of its extras."""

import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from hetfl_flwr.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
"""The folder that contains this project's packages."""

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
"""The extra that installs an optional package, by the package's import name."""

_IMPORTED = {"pillow": "PIL"}


def lacking(error: BaseException) -> ConfigError | None:
    """Return an error that names the extra or requirement to install, if an import failed for lack of a package."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    wanted = f"hetfl[{EXTRAS[package]}]" if package in EXTRAS else _required().get(package)
    return ConfigError(f"{package} is not installed: pip install '{wanted}'") if wanted else None


def _required() -> dict[str, str]:
    """Return this project's requirements by import name."""
    try:
        lines = [line for line in requires("hetfl") or [] if ";" not in line]
    except PackageNotFoundError:  # an app bundle, on a node where hetfl is not installed
        return {}
    return {_IMPORTED.get(name := re.split(r"[^\w-]", line)[0], name.replace("-", "_")): line for line in lines}


def own_package(name: str) -> ModuleType:
    """Import one of this project's packages, without running code of another package with the same name.

    Raises ConfigError if the package is missing, as in an app bundle, or if another package or module with its name
    precedes it on Python's path.
    """
    if not (ROOT / name).is_dir():
        raise ConfigError(f"{name} is missing: {ROOT} is an app bundle, made for `flwr run`; install hetfl")
    spec = find_spec(name)
    places = [] if spec is None else [*(spec.submodule_search_locations or [str(spec.origin)])]
    found = next(iter(places), "nowhere")
    if Path(found).resolve() != ROOT / name:
        raise ConfigError(
            f"the package '{name}' of this project ({ROOT / name}) is hidden by {found}: rename that one, or remove "
            "its folder from PYTHONPATH"
        )
    return import_module(name)


def working_directory_last() -> None:
    """Append the working directory to Python's path, so that models and algorithms in it can be imported.

    It comes last, so that its folders do not hide installed packages.
    """
    here = Path.cwd()
    if here != ROOT:
        sys.path[:] = [*(place for place in sys.path if Path(place or ".").resolve() != here), str(here)]
