"""Names of series come back as the data has them: numbers, categories or text."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster, plots, scores

IDS = {
    "int": np.array([7, 3]),
    "int32": np.array([7, 3], dtype="int32"),
    "nullable": pd.array([7, 3], dtype="Int64"),
    "float": np.array([0.5, 2.0]),
    "bool": np.array([True, False]),
    "text": np.array(["007", "b"], dtype=object),
    "string": pd.array(["007", "b"], dtype="string"),
    "dates": pd.to_datetime(["2020-01-01", "2021-06-30"]),
    "mixed": np.array([7, "b"], dtype=object),
    "category": pd.Categorical(["b", "a"], categories=["a", "b", "unused"], ordered=True),
    "category of numbers": pd.Categorical([30, 5], categories=[5, 30]),
}


def frame(ids, rows=90):
    rng, label = np.random.default_rng(0), pd.Series(ids).repeat(rows).reset_index(drop=True)
    stamps = np.tile(pd.date_range("2024-01-01", periods=rows), len(ids))
    y = 10 + np.arange(len(label)) % 7 + rng.normal(size=len(label))
    return pd.DataFrame({"unique_id": label, "ds": stamps, "y": y})


@pytest.mark.parametrize("kind", IDS)
def test_every_table_has_the_ids_of_the_data(kind, tmp_path):
    data = frame(IDS[kind])
    old = data.groupby("unique_id", observed=True, sort=False).head(80)
    new = data.groupby("unique_id", observed=True, sort=False).tail(10)
    made = Forecaster(5, members=0).fit(old)
    made.save(tmp_path / "f")
    wanted = pd.Series(IDS[kind])
    for model in (made, Forecaster.load(tmp_path / "f")):
        tables = {
            "predict": model.predict(),
            "data": model.predict(old),
            "paths": model.sample_paths(2),
            "backtest": model.backtest(windows=2),
            "crossing": model.crossing(dict.fromkeys(wanted, 12.0)),
            "newsvendor": model.newsvendor(1, 2),
            "anomalies": model.anomalies(new),
            "history": model.history(),
            "one": model.history(wanted[0]),
        }
        for name, table in tables.items():
            assert table["unique_id"].dtype == old["unique_id"].dtype, name
            seen = table["unique_id"].drop_duplicates().tolist()
            assert seen == wanted.tolist()[: 1 if name == "one" else 2], name
        assert plots.worst_first(tables["backtest"])
        assert len(scores(tables["backtest"], by="unique_id", history=old)) == 2
    made.update(new)
    assert made.predict()["unique_id"].dtype == old["unique_id"].dtype


def test_new_series_join_the_old_ones():
    numbers = Forecaster(5, members=0).fit(frame([7, 3]))
    numbers.update(frame([9]))
    assert numbers.predict()["unique_id"].drop_duplicates().tolist() == [7, 3, 9]
    numbers.update(frame(["11"]))
    assert numbers.predict()["unique_id"].dtype == np.int64
    numbers.update(frame(["x"]))
    assert numbers.predict()["unique_id"].drop_duplicates().tolist() == [7, 3, 9, 11, "x"]
    groups = Forecaster(5, members=0).fit(frame(pd.Categorical(["b", "a"])))
    groups.update(frame(pd.Categorical(["c"])))
    assert groups.predict()["unique_id"].dtype == pd.CategoricalDtype(["a", "b", "c"])
