"""Values of config keys, and how they are read from a command line."""

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from hetfl_flwr.common.errors import ConfigError, private

Value = bool | int | float | str
"""What Flower allows as the value of a run-config or node-config key."""

LONGEST_VALUE = 100_000
"""Characters of a text, at most."""


def usable_path(text: str) -> Path:
    """Return a text as a path, where the file system can have one of that name.

    Raises
    ------
    ConfigError
        It is empty or too long, a part of it is, it holds a NUL character or what UTF-8 cannot write, names a user
        who has no home here, or links in a circle.
    """
    if not text:
        raise ConfigError("the name of a file or folder is empty")
    problem = _unusable(text) or _too_long(text)
    if not problem:
        try:
            Path(text).expanduser().resolve()
        except RuntimeError as error:
            said = str(error).rstrip(".")
            problem = private(said[:1].lower() + said[1:])
    if problem:
        raise ConfigError(f"{private(repr(text))} cannot be the name of a file or folder: {problem}")
    return Path(text)


def _unusable(text: str) -> str:
    """Say what makes a text one that neither TOML nor a file system can hold; nothing if they can."""
    if "\0" in text:
        return "it holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it holds what UTF-8 cannot write"
    return ""


def _too_long(path: str) -> str:
    """Say that a path is longer than Linux takes, or a part of it is; nothing if neither is."""
    if len(path.encode()) > 4095:
        return "it is longer than 4095 bytes"
    return "a part of it is longer than 255 bytes" if any(len(part.encode()) > 255 for part in path.split("/")) else ""


def check_values(values: Mapping[str, Any]) -> None:
    """Refuse what no key may be: a value of another type, one that TOML has no form for, or a text without end.

    Raises
    ------
    ConfigError
        Names the first such key.
    """
    for key, value in values.items():
        if problem := _no_value(value) or _unusable(key):
            raise ConfigError(f"{key} {problem}")


def _no_value(value: object) -> str:
    match value:
        case str():
            too_long = f"is longer than {LONGEST_VALUE} characters" if len(value) > LONGEST_VALUE else ""
            problem = _unusable(value)
            return too_long or (f"= {private(repr(value))}: {problem}" if problem else "")
        case int():
            return "" if -(2**63) <= value < 2**63 else "is a number of more than 64 bits"
        case float():
            return ""
    return f"is {type(value).__name__}, expected one number, text, true or false"


def parse_value(text: str) -> Value:
    """Read a value as TOML does; what TOML cannot read is a word.

    Examples
    --------
    >>> parse_value("0.5"), parse_value("true"), parse_value("iid")
    (0.5, True, 'iid')
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, brackets within brackets
        return text
    return value if isinstance(value, bool | int | float | str) else text


def parse_setting(text: str) -> tuple[str, Value]:
    """Read one ``key=value`` of the command line."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"'{text}' is not key=value")
    return key.strip(), parse_value(value.strip())


def parse_settings(texts: Iterable[str]) -> dict[str, Value]:
    """Read several ``key=value`` of the command line; the last one of a key counts."""
    settings: dict[str, Value] = {}
    for text in texts:
        settings |= dict([parse_setting(text)])
    return settings


def parse_algorithm_options(text: str, algorithm: str) -> dict[str, Value]:
    """Read the value of ``algorithm-options``: what would follow ``--set`` in a shell, without the algorithm's name.

    Raises
    ------
    ConfigError
        A word that is not ``key=value``, or a key with a name before it.

    Examples
    --------
    >>> parse_algorithm_options("weight=0.5 kind='two words'", "my_pkg.moments")
    {'my_pkg.moments.weight': 0.5, 'my_pkg.moments.kind': 'two words'}
    """
    try:
        settings = dict(parse_setting(word) for word in shlex.split(text))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"algorithm-options = {text!r}: {error}") from None
    for key in settings:
        if "." in key:
            raise ConfigError(
                f"algorithm-options = {text!r}: write '{key.rpartition('.')[2]}', without the algorithm's name"
            )
    return {f"{algorithm}.{key}": value for key, value in settings.items()}


def write_algorithm_options(values: Mapping[str, Value]) -> str:
    """Write an algorithm's own keys as the value of ``algorithm-options``.

    Examples
    --------
    >>> print(write_algorithm_options({"weight": 0.5, "kind": "cosine"}))
    weight=0.5 'kind="cosine"'
    """
    pairs = (tomli_w.dumps({key: value}).strip().replace(" = ", "=", 1) for key, value in values.items())
    return shlex.join(pairs)
