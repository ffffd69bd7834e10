"""The page of a report: self-contained and safe whatever labels say; sweeps, analyses, watching, thinning."""

import itertools
import json
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from commands import lsac
from made_up_runs import STEPS, make_run, table, write_lines

from lsac.analysis.figures import Look
from lsac.analysis.load import load_runs
from lsac.analysis.page.thinning import LIMIT, kept
from lsac.analysis.report import write_report
from lsac.analysis.sources import load
from lsac.errors import InputError

HOSTILE = '</script ><script>alert(1)</script><img src=x onerror="alert(2)">&amp;$title'


class Tags(HTMLParser):
    """Start tags, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def of(self, *names):
        return [attributes for tag, attributes in self.found if tag in names]


def page_of(tmp_path, paths, labels, **look):
    write_report(load_runs(paths), labels, tmp_path / "report", Look(formats=("png",), **look))
    return (tmp_path / "report" / "index.html").read_text()


def raw_data(page):
    return re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]


def data_of(page):
    return json.loads(raw_data(page))


def test_the_page_needs_nothing_else(tmp_path):
    page = page_of(tmp_path, [make_run(tmp_path / "run", table(3))], ["SAC"])
    tags = Tags(page)
    assert not any("src" in x for x in tags.of("script", "iframe", "link"))
    links = [x["href"] for x in tags.of("a", "link")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    (policy,) = [x["content"] for x in tags.of("meta") if x.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1]


def test_everything_that_users_write_is_text(tmp_path):
    """Labels, the command and captions of a hostile run become neither tags nor scripts."""
    path = make_run(tmp_path / "run", table(2))
    config = json.loads((path / "config.json").read_text()) | {"command": ["lsac", HOSTILE], "device": HOSTILE}
    (path / "config.json").write_text(json.dumps(config))
    (path / "analysis").mkdir()
    (path / "analysis" / "x.json").write_text(json.dumps({"title": HOSTILE, "caption": HOSTILE, "command": HOSTILE}))
    (path / "analysis" / "x.csv").write_text("a\n1\n")
    other = make_run(tmp_path / "other", table(2), seed=9)
    page = page_of(tmp_path, [path, other], [HOSTILE, "B"])
    tags = Tags(page)
    plain = Tags(page_of(tmp_path / "plain", [make_run(tmp_path / "plain" / "run", table(2)), other], ["A", "B"]))
    assert len(tags.of("script")) == len(plain.of("script")) == 3
    assert not {*raw_data(page)} & {*"<>&"}, "or a browser could take a label for the end of the data"
    assert tags.of("img") == []
    assert not any(name.startswith("on") for _, attributes in tags.found for name in attributes)
    assert [x["value"] for x in tags.of("input") if x.get("name") == "label"] == [HOSTILE, "B"]
    items = data_of(page)["plots"][0]["items"]
    assert {item["label"] for item in items} == {HOSTILE, "B"}
    assert all("<script" not in item["trace"].get("hover", "") for item in items), "Plotly would read tags there"


def test_what_utf_8_cannot_write_is_replaced(tmp_path):
    """Half a surrogate pair in a JSON file, and folders whose names are no text; all files are written."""
    paths = [make_run(tmp_path / os.fsdecode(name), table(2)) for name in (b"a\xff", b"b\xff")]
    file = paths[0] / "config.json"
    file.write_text(file.read_text().replace('"command": []', '"command": ["x\\ud800"]'))
    (paths[0] / "analysis").mkdir()
    (paths[0] / "analysis" / "x.json").write_text(r'{"title": "half \udc00"}')
    result = lsac("report", *paths, "--out", tmp_path / os.fsdecode(b"out\xff"))
    assert (result.code, result.err) == (0, "")
    for path in (tmp_path / os.fsdecode(b"out\xff")).glob("*.*"):
        if path.suffix != ".png":
            path.read_text(encoding="utf-8")
    page = (tmp_path / os.fsdecode(b"out\xff") / "index.html").read_text(encoding="utf-8")
    assert all(text in page for text in ("SAC · a\ufffd", "half \ufffd", "x\ufffd"))
    labels = ("--labels", os.fsdecode(b"\xff"), "B", "--format", "svg")
    assert lsac("report", *paths, *labels, "--out", tmp_path / "other").code == 0


def test_the_plots_have_the_numbers_of_the_runs(tmp_path):
    values = table(3)
    page = page_of(tmp_path, [make_run(tmp_path / "run", values)], ["SAC"], band="minmax")
    plot = data_of(page)["plots"][0]
    assert (plot["title"], plot["y"]) == ("Pendulum-v1", "evaluation return")
    by = {(item["role"], item["statistic"]): item for item in plot["items"] if item["role"] != "seed"}
    assert by.keys() == {(role, kind) for role in ("band", "middle") for kind in ("minmax", "median")}
    mean = by["middle", "minmax"]
    assert mean["steps"] == STEPS.tolist()
    np.testing.assert_allclose(mean["y"], values.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(mean["hours"], np.arange(12) / 3600, atol=1e-8)
    np.testing.assert_allclose(by["middle", "median"]["y"], np.median(values, axis=0), rtol=1e-5)
    np.testing.assert_allclose(by["band", "minmax"]["y"], [*values.max(axis=0), *values.min(axis=0)[::-1]], rtol=1e-5)
    seeds = [item for item in plot["items"] if item["role"] == "seed"]
    assert [item["trace"]["hover"] for item in seeds] == [f"<b>SAC</b>, seed {seed}" for seed in (4, 5, 6)]
    np.testing.assert_allclose([item["y"] for item in seeds], values, rtol=1e-5)


def test_evaluations_and_training_episodes_are_in_plots_of_their_own(tmp_path):
    paths = [
        make_run(tmp_path / "a", table(2)),
        make_run(tmp_path / "b", table(2), "td3", metric="rollout/ep_rew_mean"),
    ]
    page = page_of(tmp_path, paths, ["A", "B"])
    first, second = data_of(page)["plots"][:2]
    assert (first["y"], {item["label"] for item in first["items"]}) == ("evaluation return", {"A"})
    assert (second["title"], {item["label"] for item in second["items"]}) == ("return of training episodes", {"B"})
    assert "Without evaluations: B on Pendulum-v1." in page


def test_bands_end_where_returns_do(tmp_path):
    """The t-interval of −10 and −200 reaches above 0, where Pendulum-v1 has no return."""
    values = np.repeat([[-10.0], [-200.0]], 12, axis=1)
    page = page_of(tmp_path, [make_run(tmp_path / "run", values)], ["A"])
    (band,) = [x for x in data_of(page)["plots"][0]["items"] if x["role"] == "band" and x["statistic"] == "t"]
    assert max(band["y"]) == 0
    assert min(band["y"]) == -200 - 0.2 * 190


def test_metrics_without_times_are_drawn_over_steps(tmp_path):
    """With the published curves, whose level lines end where the run does."""
    path = make_run(tmp_path / "run", table(1), env="HalfCheetah-v4")
    write_lines(path, [{"step": step, "seed": 4, "eval/mean_reward": 1.0} for step in (100, 200)])
    items = data_of(page_of(tmp_path, [path], ["SAC"]))["plots"][0]["items"]
    assert {tuple(item["hours"]) for item in items if item["role"] != "band"} == {(None, None), (0, None)}


def test_published_curves_end_where_the_runs_do(tmp_path):
    """After 1 200 steps the best public curve has no points, so its final mean is a level line; later it is a curve."""
    found = []
    for last in (1200, 300_000):
        path = make_run(tmp_path / str(last), table(1), env="HalfCheetah-v4")
        write_lines(path, [{"step": step, "seed": 4, "seconds": 9.0, "eval/mean_reward": 1.0} for step in (100, last)])
        items = data_of(page_of(tmp_path, [path], ["SAC"]))["plots"][0]["items"]
        found += [item for item in items if "best public" in item["trace"].get("hover", "")]
    level, curve = found
    assert (level["steps"], [round(y) for y in level["y"]], level["hours"]) == ([0, 1200], [15420, 15420], [0, 0.0025])
    assert 250_000 < curve["steps"][-1] <= 300_000
    assert len(curve["y"]) == len(curve["steps"]) > 5
    assert "1 M environment steps" in curve["trace"]["hover"]


def test_the_same_runs_give_the_same_page(tmp_path):
    path = make_run(tmp_path / "run", table(2))
    assert page_of(tmp_path / "a", [path], ["A"]) == page_of(tmp_path / "b", [path], ["A"])


# thinning


def test_thinning_keeps_extremes_and_ends():
    values = np.random.default_rng(0).normal(size=20_000).cumsum()
    values[12_345] += 1e4
    values[777] -= 1e4
    at = kept(values)
    assert len(at) <= LIMIT + 2
    assert {0, 777, 12_345, 19_999} <= {*at.tolist()}
    assert (np.diff(at) > 0).all()
    edges = np.linspace(0, 20_000, LIMIT // 2 + 1).astype(int)
    for first, stop in itertools.pairwise(edges):
        inside = values[at[(at >= first) & (at < stop)]]
        assert (inside.min(), inside.max()) == (values[first:stop].min(), values[first:stop].max())


def test_thinning_keeps_the_extremes_of_every_curve():
    low, high = np.zeros(5_000), np.ones(5_000)
    low[1_000], high[3_000] = -9, 9
    assert {1_000, 3_000} <= {*kept(high, low).tolist()}
    assert kept(low[:LIMIT]).tolist() == list(range(LIMIT)), "short curves stay as they are"


# sweeps and analyses


def make_sweep(path, experiments):
    path.mkdir(parents=True, exist_ok=True)
    (path / "sweep.json").write_text(json.dumps({"name": "s", "experiments": experiments}))
    return path


def test_a_sweep_is_all_its_runs_with_their_labels(tmp_path):
    sweep = make_sweep(
        tmp_path / "sweep",
        [
            {"path": "Pendulum-v1/wide", "label": "wide", "env": "Pendulum-v1", "algorithm": "sac"},
            {"path": "Pendulum-v1/narrow", "label": "narrow", "env": "Pendulum-v1", "algorithm": "sac"},
            {"path": "Pendulum-v1/later", "label": "later", "env": "Pendulum-v1", "algorithm": "sac"},
        ],
    )
    for name in ("wide", "narrow"):
        make_run(sweep / "Pendulum-v1" / name, table(2))
    alone = make_run(tmp_path / "alone", table(2), "td3")
    loaded = load((sweep, alone))
    assert (loaded.labels, loaded.waiting) == (["wide", "narrow", None], 1)
    result = lsac("report", sweep, alone, "--format", "png", "--out", tmp_path / "report")
    assert result.code == 0, result.err
    text = (tmp_path / "report" / "table.md").read_text()
    assert re.findall(r"\| Pendulum-v1 \| ([^|]+) \|", text) == ["wide", "narrow", "TD3"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], "has no list of experiments"),
        ({"experiments": {}}, "has no list of experiments"),
        ({"experiments": [3]}, "experiment 1: must have a path and a label"),
        ({"experiments": [{"path": "a", "label": 3}]}, "experiment 1: must have a path and a label"),
        (
            {"experiments": [{"path": "../a", "label": "x"}]},
            "experiment 1: path ../a must stay inside the folder of the sweep",
        ),
        (
            {"experiments": [{"path": "/etc", "label": "x"}]},
            "experiment 1: path /etc must stay inside the folder of the sweep",
        ),
    ],
)
def test_bad_sweeps_are_refused(content, problem, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        load((tmp_path,))
    assert str(caught.value).removeprefix(str(tmp_path / "sweep.json")).lstrip(",: ") == problem


def test_a_sweep_that_has_not_begun(tmp_path):
    make_sweep(tmp_path, [{"path": "a", "label": "a"}])
    with pytest.raises(InputError, match=r"no run holds returns yet$"):
        load((tmp_path,))
    assert load((tmp_path,), patient=True).waiting == 1


def test_analyses_of_the_runs_are_shown(tmp_path):
    path = make_run(tmp_path / "run", table(2))
    (path / "analysis").mkdir()
    notes = {"title": "Bias of Q", "caption": "Over training.", "command": "lsac analyse q-bias runs/x"}
    (path / "analysis" / "q-bias.json").write_text(json.dumps(notes))
    (path / "analysis" / "q-bias.csv").write_text("step,bias\n1,2\n")
    (path / "analysis" / "q-bias.png").write_bytes(b"\x89PNG picture")
    (path / "analysis" / "q-bias.svg").write_text("<svg/>")
    page = page_of(tmp_path, [path], ["SAC"])
    assert "Bias of Q · SAC, Pendulum-v1" in page
    assert "<code>lsac analyse q-bias runs/x</code>" in page
    copies = [*(tmp_path / "report").glob("*q-bias*")]
    assert [copy.name for copy in copies] == ["Pendulum-v1-SAC-q-bias.png"], "in the formats that were asked for"
    assert copies[0].read_bytes() == b"\x89PNG picture"
    tags = Tags(page)
    assert [x["alt"] for x in tags.of("img")] == ["Bias of Q · SAC, Pendulum-v1"]
    assert "q-bias.csv" in [x.get("download") for x in tags.of("a")]


def test_an_analysis_that_leaves_the_run_is_not_shown(tmp_path):
    path = make_run(tmp_path / "run", table(2))
    (tmp_path / "secret").write_text("secret words")
    (path / "analysis").mkdir()
    (path / "analysis" / "a.json").write_text("{}")
    for suffix in ("csv", "png"):
        (path / "analysis" / f"a.{suffix}").symlink_to(tmp_path / "secret")
    page = page_of(tmp_path, [path], ["SAC"])
    assert "leaves the folder of the run" in page
    assert "c2VjcmV0IHdvcmRz" not in page, "in base64"
    assert not [*(tmp_path / "report").glob("*-a.png")]


# watching


def lines_until(last):
    return [
        {"step": step, "seed": 4, "seconds": step / 10, "eval/mean_reward": float(step)}
        for step in STEPS.tolist()
        if step <= last
    ]


def last_step(page):
    return data_of(page)["plots"][0]["items"][-1]["steps"][-1]


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Watches a run; after each look, the next of some functions is called with the page."""
    path = make_run(tmp_path / "run", table(1), steps=1200, chunk=8)
    page = tmp_path / "report" / "index.html"

    def watch(*looks):
        left = list(looks)
        monkeypatch.setattr("time.sleep", lambda seconds: left.pop(0)(page.read_text() if page.is_file() else ""))
        result = lsac("report", path, "--watch", "--every", 20, "--format", "png", "--out", page.parent)
        assert (result.code, result.err, left) == (0, "", [])
        return result.out, page

    return path, watch


def interrupt(page):
    raise KeyboardInterrupt


def test_watching_renews_the_page_until_runs_have_finished(watched):
    path, watch = watched
    write_lines(path, lines_until(300))
    figure = path.parent / "report" / "Pendulum-v1.png"

    def first(page):
        assert (last_step(page), data_of(page)["reload"]) == (300, 20)
        assert re.search(r"1 of 1 is still going: this page of \d\d:\d\d:\d\d loads itself again every 20 s\.", page)
        write_lines(path, lines_until(600))

    def second(page):
        assert last_step(page) == 600
        assert not figure.exists(), "figures come at the end"

    def unchanged(page):
        assert last_step(page) == 600
        write_lines(path, lines_until(1200))

    out, page = watch(first, second, unchanged)
    assert (last_step(page.read_text()), data_of(page.read_text())["reload"]) == (1200, 0)
    assert figure.is_file()
    assert str(figure) in out


def test_watching_waits_for_the_first_metrics_and_ends_with_an_interrupt(watched):
    path, watch = watched
    (path / "metrics.jsonl").unlink()

    def nothing(page):
        assert page == ""
        write_lines(path, lines_until(300))

    _, page = watch(nothing, interrupt)
    assert (last_step(page.read_text()), data_of(page.read_text())["reload"]) == (300, 0)


def test_a_line_that_is_half_written_is_read_at_the_next_look(watched):
    path, watch = watched
    write_lines(path, lines_until(300))

    def half(page):
        with (path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4')

    def whole(page):
        assert last_step(page) == 300
        write_lines(path, lines_until(400))

    def seen(page):
        assert last_step(page) == 400
        raise KeyboardInterrupt

    out, _ = watch(half, whole, seen)
    assert "line 4: is not JSON; the page stays as it is" in out


def test_labels_of_watched_runs_are_theirs_before_they_have_metrics(tmp_path, monkeypatch):
    """Also of curves that are pooled: the first two runs, of which one has begun, are one curve."""
    paths = [make_run(tmp_path / name, table(1), seed=seed, chunk=8) for seed, name in enumerate("abc")]
    other = make_run(tmp_path / "d", table(1), "td3", chunk=8)
    later = {path: path.joinpath("metrics.jsonl").read_text() for path in (paths[0], other)}
    for path in later:
        (path / "metrics.jsonl").unlink()
    page = tmp_path / "report" / "index.html"

    def labels():
        return {item["label"] for item in data_of(page.read_text())["plots"][0]["items"] if item["label"]}

    def first(seconds):
        assert labels() == {"Second", "Third"}
        for path, text in later.items():
            (path / "metrics.jsonl").write_text(text)

    monkeypatch.setattr("time.sleep", first)
    words = ("--watch", "--format", "png", "--out", page.parent, "--labels")
    result = lsac("report", *paths, other, *words, "First", "Second", "Third", "Other")
    assert (result.code, result.err) == (0, "")
    assert labels() == {"First", "Second", "Third", "Other"}

    (other / "metrics.jsonl").unlink()

    def pooled(seconds):
        assert labels() == {"SAC, three seeds"}
        (other / "metrics.jsonl").write_text(later[other])

    monkeypatch.setattr("time.sleep", pooled)
    result = lsac("report", *paths, other, "--pool", *words, "SAC, three seeds", "Other")
    assert (result.code, result.err) == (0, "")
    assert labels() == {"SAC, three seeds", "Other"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--labels", "A", "B"), "--labels A B: must be 1 label, for the one curve"),
        (("--references", "nowhere.csv"), "--references nowhere.csv: cannot be read (No such file or directory)"),
        (("--out", "{}/file"), "--out {}/file: cannot be written (File exists)"),
    ],
)
def test_what_waiting_does_not_mend_ends_a_watch_at_once(options, problem, watched):
    path, _ = watched
    (path / "metrics.jsonl").unlink()
    (path.parent / "file").touch()
    given = [option.format(path.parent) for option in options]
    out = () if "--out" in options else ("--out", path.parent / "report")
    result = lsac("report", path, "--watch", *given, *out)
    assert (result.code, result.sentence) == (2, f"lsac: {problem.format(path.parent)}")


def test_a_line_that_is_half_written_at_the_first_look_is_waited_for(watched):
    path, watch = watched
    (path / "metrics.jsonl").write_text('{"step": 4')

    def whole(page):
        assert page == ""
        write_lines(path, lines_until(400))

    def interrupted(page):
        assert last_step(page) == 400
        (path / "metrics.jsonl").write_text('{"step": 4')
        raise KeyboardInterrupt

    out, page = watch(whole, interrupted)
    assert "line 1: is not JSON; not yet" in out
    assert last_step(page.read_text()) == 400, "of the last look that could be read"


def test_a_folder_without_a_run_is_not_watched(tmp_path):
    result = lsac("report", tmp_path, "--watch", "--out", tmp_path / "report")
    assert (result.code, result.sentence) == (
        2,
        f"lsac: {tmp_path}: is not the folder of a run (it has no config.json)",
    )
