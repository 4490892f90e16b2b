"""Walking forward does not look ahead."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster

ROWS, HORIZON = 300, 6
KEYS = ["mean", "lo-95", "hi-95"]


def frame(change):
    """A series with columns that ``change`` alters after row 270, the first cutoff of five windows."""
    rng = np.random.default_rng(0)
    load = rng.normal(size=ROWS)
    y = np.append(0, load[:-1]) + 0.3 * rng.normal(size=ROWS)
    found = pd.DataFrame({"ds": np.arange(ROWS), "y": y, "load": load, "open": 1.0, "kind": "a"})
    later = np.arange(ROWS) >= ROWS - 5 * HORIZON
    if change:
        found.loc[later, "load"] = 1e12
        found.loc[later, "open"] = rng.normal(size=later.sum())
        found.loc[later, "kind"] = "b"
    return found


@pytest.mark.parametrize("given", [True, False])
def test_covariates_after_the_first_cutoff_do_not_change_its_forecast(given):
    """Their roles and scales come from rows before it."""
    found = []
    for change in (False, True):
        data = frame(change)
        f = Forecaster(HORIZON, freq=1, members=0).fit(data)
        walk = f.backtest(data if given else None, windows=5)
        found.append(walk[walk["cutoff"] == walk["cutoff"].min()][KEYS])
    pd.testing.assert_frame_equal(*found, rtol=0, atol=0)
