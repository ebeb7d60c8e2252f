"""Links between pages of docs/ and of simulations/, which docs/ holds as linked folders.

In the repository a page links to the real folders; on the site the same link stays within docs/.
"""

from typing import Any

FOLDERS = ("deployment", "results", "benchmarks")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with its links between docs/ and simulations/ as they are on the site."""
    up = "" if "/" not in page.file.src_uri else "../"
    for folder in FOLDERS:
        markdown = markdown.replace(f"](../simulations/{folder}/", f"]({up}{folder}/")
    return markdown.replace("](../../docs/", "](../")
