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
