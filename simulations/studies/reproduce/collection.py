"""One Markdown file of all tables: each a section, before them what they come to, after them what has not been run."""

import re
from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile

from hetfl_flwr.common.errors import RunFolderError

RESULTS = "results"
"""Folder beside the file, for pictures and for what each run came to."""

MISSING = "Not run"
"""Heading of the section that names what has not been run."""

FIGURE = re.compile(r"^(?:\| [^|]+ ){4}\| (\d+) \| \S+ \| [^|]+ \| (yes|no|-) \| (-|\d+\.\d) \|", re.MULTILINE)
"""A line of a table with one figure: seeds, whether the paper's is in the interval, how many deviations it is away."""

GLANCE = """\
How many of a table's figures have the paper's within our 95 % interval, and how many are over two of our deviations
away from it. Neither is counted where a reading of the paper was chosen by its result, nor for figures without an
interval: those of fewer than three seeds, and shares whose interval would go beyond 0 or 100 %. What has less than the
paper's rounds, data or networks says so in its section, with what was found.

| table or figure | runs | seeds | paper within | over two deviations |
| --- | --: | --: | --: | --: |"""


PAPERS = "What holds, paper by paper"
"""Heading of what is said of each paper before any table, by hand."""


def collect(titles: Mapping[str, str], made: Mapping[str, Path], path: Path) -> None:
    """Write the tables that have figures, their pictures beside the file, and which ones have none.

    What the file has of other tables, or of these from runs that are no longer known, stays; so does what somebody has
    written under `PAPERS`, before all tables.

    Parameters
    ----------
    titles : mapping of str to str
        The title of each recipe that was asked for, by its name.
    made : mapping of str to Path
        Of those with figures, the folder of ``table.md`` and ``figure.png``, by title.
    path : Path
        The file.

    Raises
    ------
    RunFolderError
        It cannot be written.
    """
    try:
        (path.parent / RESULTS).mkdir(parents=True, exist_ok=True)
        sections = _sections(path)
        papers, missing = sections.pop(PAPERS, ""), sections.pop(MISSING, "").split("\n")
        papers = papers.partition(GLANCE.partition("\n")[0])[0]
        for title, folder in made.items():
            picture, drawn = f"{RESULTS}/{folder.name}.png", folder / "figure.png"
            if drawn.exists():
                copyfile(drawn, path.parent / picture)
            sections[title] = (folder / "table.md").read_text()
            if (path.parent / picture).exists():
                sections[title] += f"\n![{title}]({picture})\n"
        sections = {title: sections[title] for title in sorted(sections, key=str.casefold)}
        missing += [f"- {title} (`{name}`)" for name, title in titles.items()]
        missing = [line for line in dict.fromkeys(missing) if line[2:].rpartition(" (`")[0] not in {"", *sections}]
        glance = [GLANCE, *map(_glance, sections.items()), ""] if sections else []
        last = [f"## {MISSING}\n", *missing, ""] if missing else []
        first = [papers.rstrip("\n") + "\n"] if papers else []
        path.write_text("\n".join(["# Results\n", *first, *glance, *sections.values(), *last]))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}") from None


def _sections(path: Path) -> dict[str, str]:
    """Return the sections of a file of tables, by their headings; of none nothing."""
    parts = re.split(r"^(?=## )", path.read_text() if path.exists() else "", flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0].removeprefix("## "): part.rstrip("\n") + "\n" for part in parts}


def _glance(section: tuple[str, str]) -> str:
    """Return a section's line in the table of all, counted from its text."""
    title, text = section
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    runs = re.search(r"(\d+ of \d+) runs", text)
    figures = FIGURE.findall(text)
    seeds = sorted({int(number) for number, _, _ in figures} - {0})
    between = " to ".join(map(str, dict.fromkeys([*seeds[:1], *seeds[-1:]]))) or "-"
    judged = [(held, away) for _, held, away in figures if held != "-"]
    within = sum(held == "yes" for held, _ in judged)
    far = sum(held == "no" if away == "-" else float(away) > 2 for held, away in judged)  # "-": no deviation at all
    counts = [f"{count} of {len(judged)}" if judged else "-" for count in (within, far)]
    return f"| {' | '.join([f'[{title}](#{anchor})', runs[1] if runs else '-', between, *counts])} |"
