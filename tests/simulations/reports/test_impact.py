"""Impact of methods on all clients: mean gains, harmed clients, the worst off, tables and pictures."""

import numpy as np
import pytest
from fixtures.folders.studies import ALONE, HELPED, ended, study
from matplotlib.text import Text
from scipy import stats

from simulations.reports.estimates import measure_named
from simulations.reports.gains import answer
from simulations.reports.impact import Impact, impact_table
from simulations.reports.layout import lines
from simulations.reports.plots.drawing import write_figure
from simulations.reports.plots.impact import draw_impact, methods_figure
from simulations.reports.runs import load_run


def standing_of(folders):
    return answer([load_run(folder) for folder in folders]).standing


def test_the_mean_gain_has_the_paired_t_interval_over_seeds(tmp_path):
    fedhe = next(one for one in standing_of(study(tmp_path)) if one.label == "fedhe")
    expected = stats.ttest_rel(*([np.mean(scores[seed]) for seed in ALONE] for scores in (HELPED, ALONE)))
    low, high = expected.confidence_interval()
    gain = fedhe.impact.gain
    assert (gain.low, gain.high) == pytest.approx((low, high))
    assert gain.mean == pytest.approx((low + high) / 2)
    assert fedhe.impact.clients == pytest.approx({0: 0.1003333, 1: 0.0, 2: -0.2}, abs=1e-6)


def test_clients_that_lose_more_than_a_point_are_harmed(tmp_path):
    """The third client always is; the second loses 1.0, gains 2.0 and loses 1.0, so never more than a point."""
    fedhe = standing_of(study(tmp_path))[-1]
    assert fedhe.label == "fedhe"
    assert fedhe.impact.harmed == pytest.approx(1 / 3)
    assert fedhe.impact.worst == pytest.approx(-0.2)
    as_recorded = 0.0966667 - 0.106667  # 29 instead of 32 of 300
    more = Impact.of([{0: -0.0101, 1: as_recorded, 2: 0.0, 3: 0.5}])
    assert (more.harmed, np.isnan(more.gain.low), more.shown) == (0.25, True, False)
    assert Impact.of([dict.fromkeys(range(9), 0.0), {0: -0.1}]).harmed == pytest.approx(1 / 10)


def test_the_worst_tenth_is_rounded_up():
    gains = {client: client / 100 for client in range(21)}
    assert Impact.of([gains]).worst == pytest.approx(0.01)  # of 0, 1 and 2 points
    assert Impact.of([{0: 0.3}]).worst == 0.3


def test_methods_are_sorted_by_gain_including_the_baseline(tmp_path):
    folders = study(tmp_path)
    folders += [
        ended(tmp_path / "fml" / f"seed={s}", [v + 0.05 + s / 100 for v in ALONE[s]], algorithm="fml", seed=s)
        for s in ALONE
    ]
    found = standing_of(folders)
    assert [one.label for one in found] == ["fml", "local", "fedhe"]
    assert [one.impact.shown for one in found] == [True, False, True]
    table = lines(impact_table(found))
    assert "+6.0 (3.5 to 8.5)" in table[3]
    assert table[4].split()[:5] == ["local", "0.0", "0.0", "0.0", "80.4"]
    assert "clock" not in table[1]


def test_without_a_baseline_there_is_no_answer(tmp_path):
    assert answer([load_run(ended(tmp_path / "run", [0.5, 0.6], algorithm="fedhe", seed=0))]) is None


def test_the_picture_has_a_row_per_method_and_a_dot_per_client(tmp_path):
    from matplotlib.figure import Figure

    found = standing_of(study(tmp_path))
    axes = Figure().subplots()
    draw_impact(axes, {one.label: one.impact for one in found}, {"fedhe": "3 kB"})
    assert [label.get_text() for label in axes.get_yticklabels()] == ["local", "fedhe"]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == [3, 3]
    assert dots[1].get_ydata() == pytest.approx([1.18] * 3)  # below its row, whose mean is above
    assert dots[1].get_xdata() == pytest.approx([10.03333, 0.0, -20.0], abs=1e-4)
    assert [text.get_text() for text in axes.texts] == ["3 kB"]
    means = [line for line in axes.lines if line.get_marker() == "D"]
    assert [line.get_markerfacecolor() == "white" for line in means] == [True, False]
    write_figure(methods_figure(found), tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").read_text().count("<path") > 10


def test_a_pooled_baseline_is_named_in_table_and_picture(tmp_path):
    """Without runs of local training, the baseline is pooled training."""
    folders = [ended(tmp_path / "pooled", ALONE[0], algorithm="local", pooled=True, seed=0)]
    folders += [ended(tmp_path / "fedhe", HELPED[0], algorithm="fedhe", seed=0)]
    found = standing_of(folders)
    assert [one.label for one in found] == ["pooled", "fedhe"]
    figure = methods_figure(found)
    said = [text.get_text() for text in figure.findobj(Text)]
    assert "Points of accuracy over pooled training; right: payload" in said
    other = [text.get_text() for text in methods_figure(found, measure=measure_named("auc")).findobj(Text)]
    assert "Points of AUC over pooled training; right: payload" in other
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["fedhe"]
    assert "points of accuracy over pooled training" in " ".join(lines(impact_table(found)))
    assert "training alone" not in " ".join([*said, *lines(impact_table(found))])
