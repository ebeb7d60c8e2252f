"""One page of all results, a section a recipe, and beside it a full report of each recipe."""

import re
from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

from hetfl_flwr.common.errors import RunFolderError

RESULTS = "results"
"""Folder beside the page, for full reports, pictures and what each run came to."""

MISSING = "Not run"
"""Heading of the section that names what has not been run."""

PAPERS = "What holds, paper by paper"
"""Heading of the text that is written by hand and stands before all sections."""


class Report(NamedTuple):
    """What was made of a recipe.

    Parameters
    ----------
    folder : Path
        Where ``table.md`` is, the full report, and ``figure.png``, if anything is drawn.
    summary : str
        Its section of the page.
    pictured : bool
        Whether the picture stands on the page, too, or in the full report alone.
    """

    folder: Path
    summary: str
    pictured: bool = True


def collect(titles: Mapping[str, str], made: Mapping[str, Report], path: Path) -> None:
    """Write a page with a section for each recipe, full reports and pictures beside it, and the recipes without runs.

    Sections of other recipes stay, and so does the text under `PAPERS`.

    Parameters
    ----------
    titles : mapping of str to str
        The title of each recipe that was asked for, by its name.
    made : mapping of str to Report
        Those with figures, by title.
    path : Path
        The page.

    Raises
    ------
    RunFolderError
        It cannot be written.
    """
    try:
        (path.parent / RESULTS).mkdir(parents=True, exist_ok=True)
        sections = _sections(path)
        papers, missing = sections.pop(PAPERS, ""), sections.pop(MISSING, "").split("\n")
        sections |= {title: _write_report(title, report, path.parent / RESULTS) for title, report in made.items()}
        sections = {title: sections[title] for title in sorted(sections, key=str.casefold)}
        missing += [f"- {title} (`{name}`)" for name, title in titles.items()]
        missing = [line for line in dict.fromkeys(missing) if line[2:].rpartition(" (`")[0] not in {"", *sections}]
        last = "\n".join([f"## {MISSING}\n", *missing, ""]) if missing else ""
        path.write_text("\n".join(filter(None, ["# Results\n", papers, *sections.values(), last])))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}") from None


def _write_report(title: str, report: Report, folder: Path) -> str:
    """Write a full report and its picture, and return the section with links to both."""
    name, drawn = report.folder.name, report.folder / "figure.png"
    if drawn.exists():
        copyfile(drawn, folder / f"{name}.png")
    text, section = (report.folder / "table.md").read_text(), f"{report.summary}\n[Full report]({RESULTS}/{name}.md)\n"
    if (folder / f"{name}.png").exists():
        text += f"\n![{title}]({name}.png)\n"
        section += f"\n![{title}]({RESULTS}/{name}.png)\n" if report.pictured else ""
    (folder / f"{name}.md").write_text(text)
    return section


def _sections(path: Path) -> dict[str, str]:
    """Return the sections of a page, by their headings; of none nothing."""
    parts = re.split(r"^(?=## )", path.read_text() if path.exists() else "", flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0].removeprefix("## "): part.rstrip("\n") + "\n" for part in parts}
