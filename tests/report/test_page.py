"""The page in a browser; skipped where there is none."""

import re
import shutil

import pytest

from corral.report import html

CIRCLE, GATHER = '[data-env="point-circle"]', '[data-env="point-gather"]'
FIRST = ".chart:nth-child(1) .plot"


@pytest.fixture(scope="module")
def file(tree, tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    # A name that would do harm in a page that took it for HTML.
    shutil.copytree(tree, root / "<img src=x onerror='hurt=1'>" / "runs")
    html.write([root], root / "report.html", "corral report")
    return root / "report.html"


@pytest.fixture
def page(browser, file):
    """The page, freshly loaded from the disk; whatever a test does with it, it must not complain."""
    browser.send("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(file)
    yield browser
    assert browser.complaints() == []
    assert [url for url in browser.requests() if url != file.as_uri()] == []


def curves(page, chart=1):
    return page.count(f".chart:nth-child({chart}) path.mean")


def test_it_loads_from_the_disk_and_draws(page):
    assert page.run("document.title") == "point-circle, point-gather · Corral report"
    assert page.count(".chart") == 4
    assert [curves(page, chart) for chart in (1, 2, 3, 4)] == [2, 2, 2, 2]
    drawn = page.run("[...document.querySelectorAll('path.mean')].map((p) => p.getAttribute('d').split('L').length)")
    assert drawn == [30] * 8  # a point for each iteration
    assert page.texts(".chart:nth-child(2) .limit-text") == ["limit 5"]
    assert page.texts("#cases .strips > g > title + text") == ["CPO, seed 0", "CPO, seed 1"]
    assert page.count("#cases rect[fill]") >= 2 * 30
    (about,) = page.texts("#cases-about")
    assert about.endswith("No strips, as they solve no constrained subproblem: TRPO.")
    (table,) = page.texts("#table-about")
    assert table.startswith("Means over the last 20 iterations (all those of shorter runs) and all seeds")
    assert page.count("#paths svg.map") == 2
    assert page.run("[...document.querySelectorAll('#paths path')].every((p) => !p.getAttribute('d').includes('NaN'))")
    assert page.run("typeof hurt") == "undefined"


def test_a_click_in_the_legend_hides_a_group_and_shows_it_again(page):
    page.click('#legend [data-group="0"]')
    assert page.run("document.querySelector('#legend [data-group=\"0\"]').getAttribute('aria-pressed')") == "false"
    assert curves(page) == 1
    assert page.count('path.mean[data-group="0"]') == 0
    assert page.count("#paths svg.map") == 1
    assert page.texts("#cases-about") == [
        "Every run with a constrained subproblem is hidden. No strips, as they solve no constrained subproblem: TRPO."
    ]
    # The button keeps the focus, and the keyboard does the same.
    page.key("Enter", "\r")
    assert curves(page) == 2
    page.click('#legend [data-group="0"]')
    page.click('#legend [data-group="1"]')
    assert "every run that has this is hidden" in page.texts(".chart:nth-child(1) text")


def test_the_pointer_tells_the_values_of_the_iteration_under_it(page):
    page.mouse("mouseMoved", page.point(FIRST, 0.5, 0.5))
    page.frame()
    (tip,) = page.texts(".chart:nth-child(1) .tip")
    number = int(re.match(r"iteration (\d+)", tip)[1])
    k = number - 1
    assert 5 < k < 25
    # CPO's seeds return k and k + 10: mean k + 5, standard deviation √50 = 7.1; TRPO's one returns 2k ± 2·0.25.
    cells = page.texts(".chart:nth-child(1) .tip td:nth-child(n+2)")
    rows = sorted([("CPO", str(k + 5), "± 7.1"), ("TRPO", str(2 * k), "± 0.5")], key=lambda row: -int(row[1]))
    assert cells == [cell for row in rows for cell in row]
    assert page.count(".chart .cursor") == 4  # in all charts
    page.run(f"document.querySelector('{FIRST}').focus()")
    page.key("ArrowRight")
    assert page.texts(".chart:nth-child(1) .tip")[0].startswith(f"iteration {number + 1}")


def test_a_drag_zooms_all_charts_and_a_double_click_resets(page):
    whole = page.texts(".chart:nth-child(4) svg text")
    page.drag(page.point(FIRST, 0.5, 0.5), page.point(FIRST, 0.8, 0.52))
    assert page.texts(".chart:nth-child(4) svg text") != whole
    page.mouse("mouseMoved", page.point(FIRST, 0.2, 0.5))
    page.frame()
    first = int(re.match(r"iteration (\d+)", page.texts(".chart:nth-child(1) .tip")[0])[1])
    assert first > 13  # a fifth from the left is now right of the middle
    at = page.point(FIRST, 0.5, 0.5)
    for clicks in (1, 2):
        page.mouse("mousePressed", at, clicks)
        page.mouse("mouseReleased", at, clicks)
    page.frame()
    assert page.texts(".chart:nth-child(4) svg text") == whole
    assert page.run("document.getElementById('reset').disabled")


def test_single_seeds_are_drawn_on_demand_one_by_one(page):
    assert page.count("path.single") == 0
    page.click("#seeds")
    assert page.count(".chart:nth-child(1) path.single") == 3
    assert page.count("#table tbody tr") == 5
    page.click('[data-seed="0/1"]')
    assert page.count(".chart:nth-child(1) path.single") == 2
    page.click("#seeds")
    assert page.count("path.single") == 0
    assert page.count("#table tbody tr") == 3


def test_the_reader_chooses_the_metric_and_the_kind_of_cost(page):
    before = page.run("document.querySelector('.chart:nth-child(3) path.mean').getAttribute('d')")
    page.run(
        "(() => { const s = document.querySelector('.chart:nth-child(3) select'); s.value = 'env_steps';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    assert page.run("document.querySelector('.chart:nth-child(3) path.mean').getAttribute('d')") != before
    page.mouse("mouseMoved", page.point(".chart:nth-child(3) .plot", 0.999, 0.5))
    shaped = page.run("document.querySelector('.chart:nth-child(2) path.mean').getAttribute('d')")
    page.click(".chart:nth-child(2) h3 button:nth-child(2)")
    assert page.run("document.querySelector('.chart:nth-child(2) path.mean').getAttribute('d')") != shaped


def test_the_table_sorts_and_marks_what_is_over_its_limit(page):
    def column(k):
        return page.texts(f"#table tbody td:nth-child({k})")

    # Means of iterations 10..29: CPO 19.5 + 5 (seeds 10 apart, sd √50), TRPO 39; in Gather, of 0..19 and 0..11, 9.5 and 5.5.
    assert column(5) == ["24.5 ± 7.1", "39", "7.5 ± 2.8"]
    page.click('[data-key="return"]')
    assert column(5) == ["39", "24.5 ± 7.1", "7.5 ± 2.8"]
    page.click('[data-key="return"]')
    assert column(2) == ["CPO", "CPO", "TRPO"]
    # The cost 16d/(k + 9) is over d where k < 7, and C⁺ = that + 0.01 also at k = 7: of 30 iterations 8.
    assert column(9)[1:] == ["27%", "27%"]
    assert column(7)[0].startswith("▲")


def test_settings_show_what_differs_and_everything_on_demand(page):
    own = ("name", "calibration", "memory", "margin", "reserve", "hysteresis", "lower")  # of CPO, which PDO lacks
    differing = [*(f"algo.{name}" for name in own), "shape_costs"]
    assert page.texts("#settings tbody th code") == differing
    page.click("#all")
    assert page.texts("#settings tr.differs code") == differing
    assert "trust.delta" in page.texts("#settings tbody th code")


def test_gather_shows_objects_and_says_whose_trajectories_are_missing(page):
    page.click(GATHER)
    assert page.count("#paths svg.map") == 1
    # Eight bombs as crosses; two apples and ten ranges as circles, beside the two ends of the path.
    assert page.count("#paths svg.map polygon") >= 8
    assert page.count("#paths svg.map circle") == 2 + 10 + 2
    assert page.texts("#paths-missing") == [
        "No trajectories of CPO, seed 1 (no final policy, 12 of 20 iterations done)."
    ]
    before = page.run("document.querySelector('#paths svg.map').outerHTML")
    page.click('[data-tool="episode"] button:nth-of-type(3)')
    assert page.run("document.querySelector('#paths svg.map').outerHTML") != before
    page.click(CIRCLE)
    assert page.count("#paths svg.map") == 2


def test_it_follows_the_theme_and_the_width_of_the_window(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = page.run(ground)
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    assert (dark, page.run(ground)) == ("rgb(20, 24, 27)", "rgb(255, 255, 255)")
    for width in (900, 480):
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        page.frame()
        page.frame()
        assert page.run("document.documentElement.scrollWidth") <= width
