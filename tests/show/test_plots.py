"""Figures from small synthetic records: what stands in them is what was counted, and everyone can read it."""

import itertools
import shlex
import subprocess
from hashlib import sha256

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from grpo_utils import runs
from grpo_utils.__main__ import app
from grpo_utils.show import plots

PAGES = ("#FFFFFF", "#0D1117", "#131416")  # white, GitHub's dark page, the site's dark page
# linear RGB as people without one kind of cone see it: Machado, Oliveira and Fernandes 2009, table 1, severity 1.0
SIGHT = {
    "full": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Oklab (Ottosson 2020): linear RGB -> cones -> lightness and two axes of colour; distances there are what one perceives
CONES = [[0.412221, 0.536333, 0.051446], [0.211903, 0.680700, 0.107397], [0.088302, 0.281719, 0.629979]]
OKLAB = [[0.210454, 0.793618, -0.004072], [1.977998, -2.428592, 0.450594], [0.025904, 0.782772, -0.808676]]


def linear(colour: str) -> np.ndarray:
    values = np.array(to_rgb(colour))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.1, from 1 to 21."""
    dark, light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def perceived(colour: str, sight: str) -> np.ndarray:
    seen = np.clip(np.array(SIGHT[sight]) @ linear(colour), 0, 1)
    return np.array(OKLAB) @ np.cbrt(np.array(CONES) @ seen)


@pytest.mark.parametrize("page", PAGES)
def test_colours_and_text_stand_out_of_a_light_and_of_a_dark_page(page):
    assert min(contrast(colour, page) for colour in plots.COLOURS) >= 2.99
    assert contrast(plots.INK, page) >= 4.25


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_colours_differ_in_everyones_eyes(sight):
    """0.1 is five times what is just noticed; Okabe and Ito's palette with a grey in it has 0.03 in deuteranopia."""
    seen = [perceived(colour, sight) for colour in plots.COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.1


def test_a_figure_has_no_page_of_its_own_and_the_same_bytes_every_time(tmp_path):
    plots.use_style()
    pngs = []
    for name in ("one", "two"):
        figure, axis = plt.subplots()
        axis.fill_between([0, 1], [1, 2])  # clipped: its id in the SVG is random unless it is seeded
        pngs.append(plots.save_figure(figure, tmp_path, name))
    for suffix in (".png", ".svg"):
        one, two = (sha256(path.with_suffix(suffix).read_bytes()).hexdigest() for path in pngs)
        assert one == two
    assert plt.imread(pngs[0])[0, 0, 3] == 0


def test_curves_stand_in_panels_with_their_running_mean_over_five_steps():
    paid, passed = pd.Series([0.0, 0.0, 0.5, 1.0, 1.0]), pd.Series([0.0] * 5)
    figure = plots.step_curves({"one": {"paid": paid, "passed": passed}, "other": {"paid": paid}}, "share", top=1)
    left, right = figure.axes
    assert left.get_legend_handles_labels()[1] == ["paid", "passed"]
    assert np.asarray(left.lines[1].get_ydata())[2] == pytest.approx(0.5)
    assert (left.get_ylabel(), left.get_ylim(), right.get_title()) == ("share", (0, 1), "other")
    plt.close(figure)


def test_published_figures_come_with_captions_and_the_command_that_made_them(tmp_path):
    plots.use_style()
    figures = [plots.save_figure(plt.figure(), tmp_path, name) for name in plots.CAPTIONS]
    plots.publish_figures(figures, tmp_path / "shown", "make figures")
    text = (tmp_path / "shown" / "README.md").read_text()
    for name, caption in plots.CAPTIONS.items():
        assert f"![{name}]({name}.svg)" in text
        assert f"{caption} Made by `make figures`." in text
        assert {path.suffix for path in (tmp_path / "shown").glob(f"{name}.*")} == {".png", ".svg"}


def test_the_figures_of_a_variant_stay_apart_from_those_of_its_recipe(tmp_path, monkeypatch):
    shown = ["make", "--no-print-directory", "--dry-run", "figures", "ARGS=--run other"]
    make = subprocess.run(shown, cwd=runs.ROOT, capture_output=True, text=True, check=True)
    monkeypatch.setattr(
        plots, "draw_figures", lambda recipe, run: [plots.save_figure(plt.figure(), run, "learning_curve")]
    )
    monkeypatch.chdir(tmp_path)
    runs.start_run(runs.load_recipe("cpu-code", {"name": "other"}))
    app(shlex.split(make.stdout.splitlines()[-1])[1:], standalone_mode=False)
    assert {path.parent.name for path in tmp_path.glob("figures/*/*")} == {"other"}


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return pd.read_csv(runs.ROOT / "data" / "reference" / "llama3_8b_grpo_mbpp.csv")


def records(shares: dict[str, float], count: int = 10) -> pd.DataFrame:
    """One greedy completion for each task; the first tasks are solved."""
    key = {"split": "validation", "shots": 1, "sample": -1}
    rows = [
        key | {"checkpoint": c, "task_id": i, "strict": i < count * p} for c, p in shares.items() for i in range(count)
    ]
    return pd.DataFrame(rows)


def test_the_published_table_is_the_base_and_twelve_checkpoints_of_500_tasks(published):
    assert len(published) == 13
    assert set(published.tasks) == {500}
    counts = 500 * published[["0-shot", "3-shot"]]
    assert (counts - counts.round()).abs().max(axis=None) < 1e-9
    assert counts["3-shot"].round().astype(int).agg(["min", "max"]).tolist() == [279, 290]


def test_the_figure_shows_the_published_table_and_our_policies_in_order_of_training(published):
    ours = records({"checkpoint-10": 0.5, runs.BASE: 0.1, "checkpoint-4": 0.3})
    left, right = plots.beside_published(published, ours, trained_shots=1).axes
    drawn = [container[0].get_ydata().tolist() for container in left.containers]
    assert drawn == [published["0-shot"].tolist(), published["3-shot"].tolist()]
    assert right.containers[0][0].get_ydata().tolist() == [0.1, 0.3, 0.5]
    assert [label.get_text() for label in right.get_xticklabels()] == ["base", "step 4", "step 10"]


def test_beside_a_run_on_other_tasks_the_published_table_stands_alone(published):
    (alone,) = plots.beside_published(published, None, trained_shots=1).axes
    assert len(alone.containers) == 2


@pytest.mark.parametrize("warm", [False, True])
def test_the_warm_start_is_drawn_only_where_there_was_one(warm):
    names = [runs.BASE, "checkpoint-4"] + ([runs.WARM_START] if warm else [])
    key = {"split": "test", "shots": 0, "strict": True, "lenient": True, "grade": 1, "task_id": 1}
    rows = [key | {"checkpoint": name, "sample": sample} for name in names for sample in (-1, 0)]
    left, right = plots.before_and_after(pd.DataFrame(rows), "checkpoint-4", trained_shots=0).axes
    expected = ["base, 0-shot", "warm start, 0-shot", "trained, 0-shot"]
    assert right.get_legend_handles_labels()[1] == [label for label in expected if warm or "warm" not in label]
    assert len(left.get_xticks()) == len(names)
