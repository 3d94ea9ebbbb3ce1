"""The page: what must be on it, that it is one file without scripts or network, and that it renders anything."""

import json
import re
import shutil
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from tests.results.study import metric_lines, write_study
from trainer.config import load_config
from trainer.results import charts, report
from trainer.results.fold_result import read_fold_result, write_fold_result
from trainer.results.report import config_rows, load_study, number, render_html, time_span, utc, write_report

CONFIG = load_config("cpu-demo")
VOID = {"meta", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, collects the text and every attribute that could fetch something."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text, self.links = [], set(), [], []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data", "srcset")]
        assert not [k for k, _ in attrs if k.startswith("on")], "an event handler is a script"

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("runs") / "made-up-1", n=3600)


@pytest.fixture(scope="module")
def html(folder):
    return render_html(load_study(folder, CONFIG, (0, 1, 2)))


def svgs(html):
    return re.findall(r"<svg.*?</svg>", html, re.DOTALL)


def test_one_file_without_scripts_or_network(html):
    page = Page(html)
    assert not page.tags & {"script", "iframe", "object", "embed", "link", "img", "form", "base"}
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"@import|javascript:|url\((?!#)", html)
    # the only addresses are XML namespaces
    assert set(re.findall(r'https?://[^"\s]*', html)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(html.encode()) < 2_000_000


def test_the_verdict_comes_first_and_every_figure_is_there(folder, html):
    words = Page(html).words
    study = load_study(folder, CONFIG, (0, 1, 2))
    assert words.index("Gate failed") < words.index("Folds, out of sample") < words.index("How to read this page")
    for c in study.verdict.criteria:
        assert c.name in words and c.shown in words
    for r in study.found.values():
        for figure in (
            number(r.net_ticks.value),
            number(r.net_ticks.low),
            number(r.policy.wr, 3),
            number(r.sharpe.value, 3),
        ):
            assert figure in words
        for lane in r.baselines.values():
            assert number(lane.net_ticks) in words
    for said in ("68,792 records, dropped pre-open=925", "a spread is assumed"):
        assert said in words
    for said in ("interrupted", "75", "cpu-b", "win rate (wr)", "hold_pct", "not annualised", "deflated Sharpe"):
        assert said in words


def test_every_setting_is_listed_with_its_value(html):
    words = Page(html).words
    rows = [(key, value) for _, section in config_rows(CONFIG) for key, value, _ in section]
    assert len(rows) == sum(len(s) for s in CONFIG.model_dump(exclude={"profile"}).values())
    for key, value in rows:
        assert key in words and value in words


def test_pictures_are_sound_svg_in_the_colours_of_the_page(html):
    pictures = svgs(html)
    assert len(pictures) == 1 + 3 + 1 + 1 + 1  # net, equity of each fold, actions, training, controllers
    for picture in pictures:
        root = ET.fromstring(picture)
        assert root.attrib["role"] == "img" and root.attrib["aria-label"] and "viewBox" in root.attrib
        assert "width" not in root.attrib and root.find(".//{*}text") is not None
        assert not re.search(r"#0a0[bc]", picture), "a placeholder colour is left"
    for name in (*charts.COLOURS, *list(charts.FOLD_COLOURS)[:3]):
        assert f"var({name})" in html and html.count(f"{name}:") == 2  # light and dark
    ids = re.findall(r'id="([^"]+)"(?:[^>]*)>', html)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', html))
    assert used <= set(ids)


def test_tick_labels_keep_their_digits(html):
    """Rounding is for coordinates only: the learning rates' labels must not become 0.0."""
    assert re.search(r">0\.00[1-9]", "".join(svgs(html)))


def test_superseded_metric_lines_are_drawn_once(folder):
    steps = [line["step"] for line in load_study(folder, CONFIG, (0,)).metrics[0]]
    assert steps == sorted(set(steps)) and steps[-1] == 1500


def test_the_same_study_gives_the_same_bytes_and_json_says_the_same(folder, html):
    study = load_study(folder, CONFIG, (0, 1, 2))
    path = write_report(study)
    assert path == folder / "report.html" and path.read_text() == html
    data = json.loads((folder / "report.json").read_text())
    assert data["verdict"].startswith("FAILED: ") and data["gate"]["passed"] is False
    assert set(data["folds"]) == {"0", "1", "2"} and len(data["attempts"]) == 6
    assert data["config"]["env"]["fee_ticks"] == CONFIG.env.fee_ticks


def test_a_missing_fold_is_shown_as_missing(folder, tmp_path):
    run = tmp_path / "partial"
    shutil.copytree(folder, run)
    shutil.rmtree(run / "fold1")
    html = render_html(load_study(run, CONFIG, (0, 1, 2)))
    words = Page(html).words
    assert "no result this fold did not finish" in words and "fold 1 has no result" in words
    assert len(svgs(html)) == 6


def test_only_some_folds_asked_for(folder):
    words = Page(render_html(load_study(folder, CONFIG, (0,)))).words
    assert "study of 1 fold on SYNTH" in words and "Gate passed" in words


def test_no_metrics_no_curve_no_attempts(folder, tmp_path):
    run = tmp_path / "bare"
    for fold in (0, 1, 2):
        (run / f"fold{fold}").mkdir(parents=True)
        shutil.copy(folder / f"fold{fold}" / "fold_result.json", run / f"fold{fold}")
    html = render_html(load_study(run, CONFIG, (0, 1, 2)))
    words = Page(html).words
    assert "No metric lines were found." in words and "No attempts are on record." in words
    assert "Controllers" not in words and len(svgs(html)) == 2


def test_nothing_at_all_still_renders(tmp_path):
    words = Page(render_html(load_study(tmp_path, CONFIG, (0, 1)))).words
    assert "Gate failed" in words and "fold 0 has no result, fold 1 has no result" in words


def test_a_fold_without_trades(tmp_path):
    from tests.results.study import make_result
    from tests.results.test_fold_result import idle
    from trainer.results.fold_result import write_fold_files

    run = idle(600)
    write_fold_files(tmp_path / "fold0" if (tmp_path / "fold0").mkdir() is None else tmp_path, run, make_result(run))
    html = render_html(load_study(tmp_path, CONFIG, (0,)))
    words = Page(html).words
    assert "fold 0 made no trade" in words and "Fold 0: 10 minutes of PnL; an interval needs 50" in words
    assert not re.search(r"\b(nan|None|inf)\b", words)


def test_text_from_outside_is_escaped(folder, tmp_path):
    run = tmp_path / "x"
    shutil.copytree(folder / "fold0", run / "fold0")
    result = read_fold_result(run / "fold0")
    market = result.market.model_copy(update={"symbol": "<script>alert(1)</script>"})
    write_fold_result(run / "fold0", result.model_copy(update={"market": market}))
    html = render_html(load_study(run, CONFIG, (0,)))
    assert "<script" not in html and "&lt;script&gt;" in html


def test_with_many_folds_actions_become_a_table(folder, monkeypatch):
    monkeypatch.setattr(report, "ACTION_PANELS", 1)
    monkeypatch.setattr(report, "CURVE_POINTS", 10)
    study = load_study(folder, CONFIG, (0, 1))
    html = render_html(study)
    page = Page(html)
    assert len(svgs(html)) == 1 + 2 + 2 and "half flat short Q agrees" in page.words
    assert number(100 * study.found[1].action_counts["hold"] / 3600, 1) in page.words


def test_long_curves_keep_their_extremes_and_stay_small():
    y = np.random.default_rng(0).normal(0, 1, 200_000).cumsum()
    kept = charts.keep_extremes(y, 400)
    assert len(kept) <= 402 and kept[0] == 0 and kept[-1] == len(y) - 1 and np.all(np.diff(kept) > 0)
    assert y[kept].max() == y.max() and y[kept].min() == y.min()
    assert charts.keep_extremes(y[:50], 400).tolist() == list(range(50))


@pytest.mark.parametrize("points", [4, 400])
def test_a_level_stretch_needs_its_ends_only(points):
    y = np.array([3, 3, 3, 3, 5, 5, 5, 2, 2, 2, 2, 2.0])
    kept = charts.keep_extremes(y, points)
    assert np.all(np.diff(y[kept], 2) != 0) or len(kept) < 7
    if points > len(y):
        assert kept.tolist() == [0, 3, 4, 6, 7, 11]
    assert charts.keep_extremes(np.full(100, 7.0), points).tolist() == [0, 99]
    assert charts.keep_extremes(np.zeros(0), points).tolist() == [] and len(charts.keep_extremes(y[:1], points)) == 1


def curve_of(end, n=40):
    """A curve that runs from 0 to `end` ticks."""
    ts = 1_703_545_200_000_000_000 + np.arange(n, dtype=np.int64) * 60 * 10**9
    equity = np.linspace(0, end * 1000, n).astype(np.int64)
    return pl.DataFrame({"ts": ts, "equity": equity, "gross": equity})


@pytest.mark.parametrize("end", [-3, -900, -12_000, -250_000, -3_000_000, 4_000_000])
def test_the_axis_label_stands_clear_of_the_edge_and_of_the_tick_labels(end):
    svg = charts.equity_chart(curve_of(end), 0)
    label = float(re.search(r'x="([\d.-]+)" y="[\d.-]+" transform="rotate\(-90[^>]*>ticks', svg)[1])
    ticks = [(float(x), text) for x, text in re.findall(r'text-anchor: end[^>]*x="([\d.]+)"[^>]*>([^<]*)', svg)]
    assert label >= 8, "the letters reach 7 points to the left of their baseline"
    for x, text in ticks:
        assert x - 5.2 * len(text) > label, text


def test_the_figure_of_a_full_bar_stays_inside_the_picture():
    from tests.results.study import make_result
    from tests.results.test_fold_result import idle

    svg = charts.action_chart(dict.fromkeys((0, 1, 2), make_result(idle(600))))
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    found = [float(x) for x in re.findall(r'x="([\d.]+)"[^>]*>100\.0<', svg)]
    assert len(found) == 3 and max(found) + 5 * len("100.0") < width


def test_a_page_of_very_many_folds_stays_small():
    """Base and curves of every picture, at the widest: curves that go up and down at each point."""
    folds = 60
    noise = np.random.default_rng(0)
    curve = curve_of(0, 4000).with_columns(
        **{
            name: pl.Series(noise.normal(0, 1e6, 4000).cumsum().astype(np.int64))
            for name in ("equity", "gross", "baseline_imbalance", "baseline_buy_and_hold", "baseline_random")
        }
    )
    equity = len(charts.equity_chart(curve, 0, report.curve_points(folds)))
    lines = {f: metric_lines(1500, 50, f) for f in range(folds)}
    names = [*charts.TRAINING, *((name, name) for name in charts.CONTROLLERS)]
    assert folds * equity + len(charts.metrics_chart(lines, names, "curves")) < 1_400_000


@pytest.mark.parametrize("seconds", [0, 0.5, 45, 200, 1000, 7000, 2e5, 2e6, 1e8])
def test_windows_of_any_length_get_a_time_axis(seconds):
    n = 40
    ts = (1_703_545_200_000_000_000 + np.linspace(0, seconds, n) * 1e9).astype(np.int64)
    curve = pl.DataFrame({"ts": ts, "equity": np.arange(n) * 1000, "gross": np.arange(n) * 1000})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = re.findall(r">([^<>\n]+)</text>", charts.equity_chart(curve, 0))
    assert 2 <= len(labels[labels.index("policy before costs") + 1 : labels.index("UTC")]) <= 14


def test_formats():
    assert number(None) == "\N{EN DASH}" and number(-1234.5, 1) == "\N{MINUS SIGN}1,234.5"
    start = 1_703_545_200_000_000_000
    assert utc(start) == "2023-12-25 23:00"
    assert time_span((start, start + 60 * 10**9)) == "2023-12-25 23:00 \N{EN DASH} 23:01"
    assert time_span((start, start + 3600 * 10**9)) == "2023-12-25 23:00 \N{EN DASH} 2023-12-26 00:00"


def test_importing_the_results_is_light():
    code = (
        "import sys, trainer.results.report, trainer.results.baselines, trainer.results.trials\n"
        "print([m for m in ('matplotlib', 'jinja2', 'polars', 'scipy', 'arch', 'rich', 'pandas') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
