"""The page in headless Chromium: no errors, no network, controls that work, numbers that equal the CSV file."""

import csv
import itertools
import json
import re

import numpy as np
import pytest
from browser import CHROMIUM, browser
from made_up_runs import make_run, table

from lsac.analysis.figures import Look
from lsac.analysis.load import load_runs
from lsac.analysis.report import Going, write_report

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH"),
]
LABELS = ["SAC", "<b>wide</b> & $x$", "TD3", "PPO"]
ENVS = ("dm_control/cheetah-run-v0", "dm_control/walker-run-v0")
SAC = "document.querySelector('[name=label][value=SAC]')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four labels on two tasks, with diagnostics, published numbers and a comparison across tasks."""
    path = tmp_path_factory.mktemp("browser")
    runs = []
    for i, env in enumerate(ENVS):
        for j, algorithm in enumerate(("sac", "sac", "td3", "ppo")):
            values = np.abs(table(3, shift=50 * j)) + 1
            learning_starts = 0 if algorithm == "ppo" else 150
            options = {"env": env, "gamma": 0.9 + 0.01 * j, "learning_starts": learning_starts}
            runs.append(make_run(path / f"{i}{j}", values, algorithm, **options))
    write_report(load_runs(runs), LABELS * 2, path / "report", Look(formats=("png",)))
    write_report(load_runs(runs[:4]), LABELS, path / "watched", Look(), going=Going(1, "One is still going."))
    return path


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture
def page(chromium, folder):
    chromium.events.clear()
    chromium.open(folder / "report" / "index.html")
    yield chromium
    assert chromium.trouble() == []


def visible(page, plot="returns-0"):
    """The labels and roles of the traces that Plotly draws."""
    shown = f"document.getElementById('{plot}')._fullData.filter(t => t.visible === true)"
    return [tuple(pair) for pair in page.run(f"{shown}.map(t => [t.meta.label, t.meta.role])")]


def settle(page):
    page.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")


def choose(page, name, value):
    """Chooses from a list of the controls."""
    change = "dispatchEvent(new Event('change', {bubbles: true}))"
    page.run(f"(s => {{ s.value = '{value}'; s.{change}; }})(document.querySelector('[name={name}]'))")
    settle(page)


def test_every_plot_is_drawn_without_errors_or_requests(page):
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    count = page.run("document.querySelectorAll('.plot').length")
    assert count >= 2 + 4 + 2, "returns, aggregates, profile and improvement"
    page.run("document.querySelectorAll('.plot').forEach(p => { p.style.height = '60px'; })")
    page.run(
        "document.querySelectorAll('section > *:not(.plots):not(details)').forEach(x => { x.style.display = 'none'; })"
    )
    for i in range(count):
        page.run(f"document.querySelectorAll('.plot')[{i}].scrollIntoView()")
        page.wait(f"document.querySelectorAll('.plot')[{i}].dataset.drawn === 'yes'")
    assert page.run("[...document.querySelectorAll('.plot')].every(p => p.querySelector('.scatterlayer .trace'))")


def test_labels_of_rows_do_not_collide(page):
    page.run("document.getElementById('improvement-0').scrollIntoView()")
    page.wait("document.getElementById('improvement-0').dataset.drawn === 'yes'")
    boxes = page.run(
        "[...document.querySelectorAll('#improvement-0 .ytick text')].map(t => t.getBoundingClientRect())"
        ".map(b => [b.top, b.bottom]).sort((a, b) => a[0] - b[0])"
    )
    assert len(boxes) == len(LABELS) * (len(LABELS) - 1)
    assert all(upper[1] <= lower[0] for upper, lower in itertools.pairwise(boxes))


def test_an_algorithm_can_be_hidden_everywhere(page):
    assert {label for label, _ in visible(page)} == {*LABELS}
    page.run(f"{SAC}.click()")
    settle(page)
    assert {label for label, _ in visible(page)} == {*LABELS[1:]}
    rows = "[...document.querySelectorAll('#table-table tbody tr')].filter(r => r.offsetParent).length"
    assert page.run(rows) == 6
    page.run(f"{SAC}.click()")
    settle(page)
    assert page.run(rows) == 8


def test_single_seeds_statistics_and_published_curves(page):
    roles = [role for _, role in visible(page)]
    assert (roles.count("middle"), roles.count("band"), roles.count("seed")) == (4, 4, 12)
    before = page.run(
        "document.getElementById('returns-0')._fullData.find(t => t.visible && t.meta.role === 'middle').y[0]"
    )
    for name in ("seeds", "published"):
        page.run(f"document.querySelector('[name={name}]').click()")
    choose(page, "statistic", "median")
    roles = [role for _, role in visible(page)]
    assert (roles.count("middle"), roles.count("band"), roles.count("seed")) == (4, 4, 0)
    assert roles.count("published") == 4, "the paper's SAC, TD3 and PPO, and the best public curve"
    after = page.run(
        "document.getElementById('returns-0')._fullData.find(t => t.visible && t.meta.role === 'middle').y[0]"
    )
    assert before != after


def test_steps_or_wall_clock_and_linear_or_logarithmic(page):
    axes = (
        "(l => [l.xaxis.title.text, l.xaxis.range[1], l.yaxis.type])(document.getElementById('returns-0')._fullLayout)"
    )
    title, end, scale = page.run(axes)
    assert (title, scale) == ("environment steps per seed", "linear")
    assert end >= 1200
    choose(page, "x", "hours")
    choose(page, "scale", "log")
    title, end, scale = page.run(axes)
    assert (title, scale) == ("hours since the start of the run", "log")
    assert end < 0.01


def test_hovering_shows_seed_step_and_value(page):
    """The mouse over the third point of the seed that is highest there."""
    script = """(() => {
        const plot = document.getElementById('returns-0');
        plot.scrollIntoView({block: 'center'});
        const seeds = plot._fullData.filter(t => t.visible === true && t.meta.role === 'seed');
        const trace = seeds.sort((a, b) => b.y[2] - a.y[2])[0];
        const box = plot.getBoundingClientRect(), layout = plot._fullLayout;
        const x = layout._size.l + layout.xaxis.d2p(trace.x[2]), y = layout._size.t + layout.yaxis.d2p(trace.y[2]);
        return [box.left + x, box.top + y, trace.x[2], trace.y[2]];
    })()"""
    x, y, step, value = page.run(script)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.wait("document.querySelector('#returns-0 .hoverlayer text') !== null")
    text = page.run("document.querySelector('#returns-0 .hoverlayer').textContent")
    assert re.search(r"(SAC|TD3|PPO|wide).*seed \d", text)
    assert f"step {step:,}" in text
    assert any(f"{value:.{digits}g}" in text for digits in range(3, 7))


def test_the_keyboard_reaches_the_controls(page):
    """Tab to the first curve, Space hides it; every control has a name."""
    for _ in range(40):
        page.press("Tab", 9)
        if page.run(f"document.activeElement === {SAC}"):
            break
    else:
        pytest.fail("Tab does not reach the curves")
    outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "focus can be seen"
    page.press(" ", 32, " ")
    settle(page)
    assert "SAC" not in {label for label, _ in visible(page)}
    assert page.run(
        "[...document.querySelectorAll('#controls input, #controls select')].every(x => x.labels[0].textContent.trim())"
    )


def shown(text):
    """The numbers of a cell."""
    return [float(x.replace(",", "")) for x in re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)]


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        (
            "table",
            {2: "seeds", 3: "eval_step", 4: "eval_final", 5: "eval_final_points", 6: "eval_last"}
            | {7: "eval_max_of_mean", 8: "eval_mean_of_max"},
        ),
        ("across-tasks", {5: "iqm", 6: "mean", 7: "median", 8: "optimality_gap"}),
        ("improvement", {3: "probability"}),
        ("efficiency", {4: "steps_per_second", 6: "ms_per_update"}),
    ],
)
def test_numbers_on_the_page_are_those_of_the_files(page, folder, name, columns):
    cells = page.run(
        f"[...document.querySelectorAll('#table-{name} tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    with (folder / "report" / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(cells) == len(rows) > 0
    for row, texts in zip(rows, cells, strict=True):
        for i, column in columns.items():
            level = "90" if name == "table" else "95"
            expected = [float(row[c]) for c in (column, f"{column}_low{level}", f"{column}_high{level}") if c in row]
            assert shown(texts[i]) == pytest.approx(expected, rel=0.006, abs=0.06 if abs(expected[0]) >= 10 else 1e-9)
    assert {texts[1] for texts in cells} <= {*LABELS}, "as they were written, with every sign"


def test_the_page_fits_a_phone(chromium, folder):
    chromium.open(folder / "report" / "index.html", 390, 844)
    assert chromium.run("document.documentElement.scrollWidth") == 390
    width = chromium.run("document.querySelector('#returns-0 .main-svg').getBoundingClientRect().width")
    assert 300 < width < 390


@pytest.mark.parametrize("width", [320, 390])
def test_long_names_fit_a_phone_too(width, chromium, tmp_path):
    """Labels, the id of an environment and the command of an analysis, none with a space; and a small phone."""
    long = "name_of_a_folder_without_any_space_that_a_person_has_chosen_for_a_run"
    runs = [make_run(tmp_path / str(i), table(3), env=f"dm_control/{long}-v0", gamma=0.9 + i / 100) for i in (0, 1)]
    (runs[0] / "analysis").mkdir()
    (runs[0] / "analysis/x.json").write_text(json.dumps({"title": long, "caption": "A figure", "command": long * 2}))
    write_report(load_runs(runs), [long, f"{long}_2"], tmp_path / "report", Look("median", formats=("png",)))
    chromium.open(tmp_path / "report/index.html", width, 844)
    assert chromium.run("document.documentElement.scrollWidth") == width
    edges = "[...document.querySelectorAll('#controls *, h1, h3, p, figure, figcaption')]"
    beyond = f"{edges}.filter(x => x.getBoundingClientRect().right > {width} && !x.closest('.scroll'))"
    assert chromium.run(f"{beyond}.map(x => x.outerHTML.slice(0, 200))") == []


def test_dark_is_dark_plots_too(chromium, folder):
    def colours():
        back = chromium.run("getComputedStyle(document.body).backgroundColor")
        return back, chromium.run("document.getElementById('returns-0')._fullLayout.font.color")

    chromium.open(folder / "report" / "index.html", dark=True)
    assert colours() == ("rgb(22, 24, 29)", "#e6e8ec")
    chromium.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    chromium.wait("document.getElementById('returns-0')._fullLayout.font.color === '#1d2129'")
    assert colours()[0] == "rgb(255, 255, 255)"


def test_a_watched_page_loads_itself_again_and_keeps_what_was_chosen(chromium, folder):
    chromium.open(folder / "watched" / "index.html")
    began = chromium.run("performance.timeOrigin")
    chromium.run(f"{SAC}.checked = false")
    chromium.run("document.querySelector('[name=x]').value = 'hours'")
    chromium.wait(f"performance.timeOrigin > {began} && document.querySelector('.plot[data-drawn]') !== null")
    assert chromium.run(f"[{SAC}.checked, document.querySelector('[name=x]').value]") == [False, "hours"]
    chromium.call("Page.navigate", url="about:blank")
