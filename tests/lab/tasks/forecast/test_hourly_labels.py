"""Dates below a plot: labels of hourly series do not overlap."""

import itertools
from datetime import datetime, timedelta

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bayesrnn.lab.tasks.forecast import plots


@pytest.mark.parametrize(("narrow", "most"), [(False, 7), (True, 4)])
def test_labels_of_hours_do_not_overlap(narrow, most):
    labels = [f"{datetime(2024, 5, 1) + timedelta(hours=i)}" for i in range(200)]
    figure = Figure(figsize=plots._NARROW if narrow else plots._WIDE, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(range(200), range(200))
    plots._date_ticks(axes, labels, most)
    figure.canvas.draw()
    boxes = [tick.label1.get_window_extent() for tick in axes.xaxis.get_major_ticks()]
    assert len(boxes) >= most - 1
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert axes.get_xticklabels()[0].get_text() == "2024-05-01\n00:00"
