"""Links and images of the pages lead somewhere: to a file of the repository, and to a heading where they name one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^()\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings: lower case, without punctuation, with hyphens for spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page):
    broken = []
    for link in links(page):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_picture_says_what_it_shows(page):
    assert "![](" not in page.read_text()


def test_the_list_of_pages_names_every_page():
    here = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert here == {link for link in links(ROOT / "docs" / "README.md") if link.endswith(".md")}


def test_all_addresses_of_the_project_are_one():
    """One home, which CITATION.cff, the package's metadata and the pages share."""
    text = "".join(
        (ROOT / name).read_text() for name in ("README.md", "pyproject.toml", "CITATION.cff", "docs/install.md")
    )
    homes = set(re.findall(r"https://github\.com/corral[\w-]*/[\w-]+", text))
    assert homes == {"https://github.com/corral-rl/corral"}
