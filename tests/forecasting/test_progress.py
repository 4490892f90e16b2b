"""Progress without a terminal: lines with the time that is left."""

import numpy as np
import pandas as pd

from bayesrnn.forecasting import Forecaster, progress


def test_lines_say_how_long_it_takes(monkeypatch, capsys):
    clock = iter([100.0, 106.0, 107.0, 112.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.Progress(True) as shown:
        for share in (0.0, 0.25, 0.3, 0.5):
            shown.update(f"network 1 of 2: step {share}", share)
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == ["network 1 of 2: step 0.25 (25%, 18 s left)", "network 1 of 2: step 0.5 (50%, 12 s left)"]


def test_walking_forward_is_not_silent(capsys):
    y = np.random.default_rng(0).normal(size=60)
    model = Forecaster(3, members=0, season=1, verbose=True).fit(pd.DataFrame({"ds": np.arange(60), "y": y}))
    model.backtest(windows=3)
    assert "backtest: window 3 of 3 (100%" in capsys.readouterr().err
