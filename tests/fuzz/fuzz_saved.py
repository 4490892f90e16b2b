"""The reader of saved models, `br.load`: configuration, weights and vocabulary of a stranger, with right digests."""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import fuzz_runs as runs
from fuzz_inputs import altered, as_json, changed, mixed, st, values, write

VOCABULARY, WEIGHTS, CONFIG = "vocabulary.txt", "model.safetensors", "config.json"


@cache
def saved() -> dict[str, bytes]:
    """The files of a small saved language model, made here."""
    from bayesrnn import saving

    run = runs.tiny_run()
    settings = json.loads(run[CONFIG])["settings"]
    with tempfile.TemporaryDirectory() as folder:
        files = {VOCABULARY: run[VOCABULARY]}
        saving.save(runs.tiny_model(), folder, builder="lab", arguments={"settings": settings}, files=files)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def saved_inputs() -> Any:
    whole = saved()
    about = json.loads(whole[CONFIG])
    config = mixed(
        st.just(whole[CONFIG]),
        st.just(whole[CONFIG]),
        altered(about).map(as_json),
        altered(about["arguments"]).map(lambda arguments: as_json({**about, "arguments": arguments})),
        altered(about["tensors"]).map(lambda tensors: as_json({**about, "tensors": tensors})),
        changed(st.just(whole[CONFIG])),
        values().map(as_json),
    )
    weights = mixed(st.just(whole[WEIGHTS]), st.just(whole[WEIGHTS]), changed(st.just(whole[WEIGHTS])))
    words = mixed(st.just(whole[VOCABULARY]), st.just(whole[VOCABULARY]), runs.vocabulary_inputs())
    return st.tuples(config, mixed(weights, runs.checkpoint_inputs()), words)


def read_saved(given: tuple[bytes, bytes, bytes], folder: Path) -> object:
    import bayesrnn as br

    config, weights, words = given
    contents = {WEIGHTS: weights, VOCABULARY: words}
    try:
        about = json.loads(config)
        about["files"] |= {
            name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if name in about["files"]
        }
        config = as_json(about)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    for name, content in {**contents, CONFIG: config}.items():
        write(folder, name, content)
    return br.load(folder)


FORECASTER = "forecaster.json"


@cache
def forecaster() -> dict[str, bytes]:
    """The files of a small saved forecaster, made here."""
    import numpy as np
    import pandas as pd

    from bayesrnn.forecasting import Forecaster

    rng, days = np.random.default_rng(0), pd.date_range("2024-01-01", periods=40)
    parts = [
        pd.DataFrame({"unique_id": n, "ds": days, "y": rng.normal(size=40), "x": rng.normal(size=40)}) for n in "ab"
    ]
    with tempfile.TemporaryDirectory() as folder:
        Forecaster(2, members=0, context=8).fit(pd.concat(parts)).save(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def forecaster_inputs() -> Any:
    whole = forecaster()
    about = json.loads(whole[FORECASTER])
    described = mixed(
        st.just(whole[FORECASTER]),
        altered(about).map(as_json),
        altered(about).map(as_json),
        *(altered(about[key]).map(lambda part, key=key: as_json({**about, key: part}))
          for key in ("settings", "clock", "columns", "arrays")),
        changed(st.just(whole[FORECASTER])),
        values().map(as_json),
    )  # fmt: skip
    return st.tuples(
        described, mixed(st.just(whole[WEIGHTS]), st.just(whole[WEIGHTS]), changed(st.just(whole[WEIGHTS])))
    )


def read_forecaster(given: tuple[bytes, bytes], folder: Path) -> object:
    """The forecaster, its first history and its forecast."""
    from bayesrnn.forecasting import Forecaster

    described, weights = given
    about = json.loads(forecaster()[CONFIG])
    contents = {WEIGHTS: weights, FORECASTER: described}
    about["files"] |= {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    for name, content in {**contents, CONFIG: as_json(about)}.items():
        write(folder, name, content)
    made = Forecaster.load(folder)
    made.history(made.ids[0])
    return made.predict()
