"""The pages in a browser: commands and headings are seen whole, on a phone and on a desk."""

import subprocess
import sys

import pytest

CUT = """selector => [...document.querySelectorAll(selector)]
    .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.textContent)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=request.config.rootpath, check=True)
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [390, 1440])
def test_no_command_or_heading_is_cut_off_at_the_right(site, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    found = 0
    for path in sorted(site.glob("**/index.html")):
        page.goto(path.as_uri())
        found += page.locator("article .language-sh pre > code").count()
        for selector in ("article .language-sh pre > code", "article h1", "article h2", "article h3"):
            assert page.evaluate(CUT, selector) == [], (path.relative_to(site), selector)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path.relative_to(site)
    assert found > 10
