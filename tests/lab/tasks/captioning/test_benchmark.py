import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from bayesrnn.lab import recipes

FILE = Path(__file__).resolve().parents[4] / "benchmarks/captioning.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("caption_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_method_has_as_many_tries_and_all_can_be_run(benchmark):
    assert len({len(tries) for tries in benchmark.VARIANTS.values()}) == 1
    for recipe, tries in benchmark.VARIANTS.items():
        made = [recipes.override(recipes.load(recipe), changed) for changed in tries.values()]
        assert all(a != b for i, a in enumerate(made) for b in made[:i])


def test_the_best_is_that_of_validation(benchmark, tmp_path):
    folder = tmp_path / "caption-search"
    folder.mkdir()
    for name, valid, test, changed in (("a", 15.0, 14.0, ["x=1"]), ("b", 14.5, 16.0, ["x=2"]), ("c", 15.5, 1.0, [])):
        metrics = {"valid_perplexity": valid, "test_perplexity": test}
        (folder / f"{name}.json").write_text(
            json.dumps({"recipe": "caption-bbb", "overrides": changed, "metrics": metrics})
        )
    assert benchmark.best(tmp_path) == {"caption-bbb": ["x=2"]}


def test_added_variants(benchmark):
    made = benchmark.variants(["caption-bbb:mine:train.lr=0.01,posterior.pi=0.5"])
    assert made["caption-bbb"]["mine"] == ["train.lr=0.01", "posterior.pi=0.5"]
    with pytest.raises(SystemExit, match="write RECIPE:NAME"):
        benchmark.variants(["caption-bbb"])


@pytest.mark.slow
def test_search_then_final(benchmark, pictures, tmp_path, monkeypatch, capsys):
    """All of it, without processes: what would be called is called here."""
    from typer.testing import CliRunner

    from bayesrnn.lab.cli import app

    calls = []

    def call(line, log):
        calls.append(line[3])
        result = CliRunner().invoke(app, line[3:])
        assert result.exit_code == 0, result.output

    monkeypatch.setattr(benchmark, "_call", call)
    small = ["--set", "model.hidden=8", "--set", "train.epochs=1", "--set", "data.batch_size=48"]
    words = ["--data", str(pictures), "--device", "cpu", "--only", "caption-dropout", *small]
    words += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert benchmark.main(["search", *words]) == 0
    assert len(calls) == len(benchmark.VARIANTS["caption-dropout"])
    assert "test_perplexity" not in capsys.readouterr().out
    more = ["--seeds", "1", "--samples", "0"]
    assert benchmark.main(["final", *words, *more]) == 0
    assert calls[len(benchmark.VARIANTS["caption-dropout"]) :] == ["train", "evaluate"]
    record = json.loads((tmp_path / "results/caption-dropout/1.json").read_text())
    assert record["overrides"] == benchmark.best(tmp_path / "results")["caption-dropout"]
    assert record["overrides"][-3:] == small[1::2]
    assert benchmark.main(["final", *words, *more]) == 0
    assert len(calls) == len(benchmark.VARIANTS["caption-dropout"]) + 2, "finished runs are kept"


@pytest.mark.slow
def test_scores_without_weights(benchmark, runs, pictures, tmp_path, monkeypatch, capsys):
    """A run that was evaluated where pycocoevalcap is missing: record and captions are enough for the rest."""
    pytest.importorskip("pycocoevalcap.bleu.bleu")
    from typer.testing import CliRunner

    from bayesrnn.lab.cli import app

    run = shutil.copytree(runs["caption-bbb"], tmp_path / "runs/caption-bbb/1")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pycocoevalcap.bleu.bleu", None)
        words = ["evaluate", str(run), "--samples", "2", "--beam", "2", "--length-penalty", "0"]
        assert CliRunner().invoke(app, words).exit_code == 0
    for weights in run.glob("*.safetensors"):
        weights.unlink()
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--only", "caption-bbb"]
    assert benchmark.main(["score", "--data", str(pictures), "--seeds", "1", *places]) == 0
    metrics = json.loads((tmp_path / "results/caption-bbb/1.json").read_text())["metrics"]
    assert {"test_perplexity_mc", "test_bleu1", "test_cider_mc", "human"} <= metrics.keys()
    assert benchmark.main(["score", "--data", str(pictures), "--seeds", "2", *places]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_failed_run_is_told_and_the_others_go_on(benchmark, pictures, tmp_path, monkeypatch, capsys):
    def call(line, log):
        raise RuntimeError("the run ended with 2")

    monkeypatch.setattr(benchmark, "_call", call)
    words = ["search", "--data", "x", "--only", "caption-bbb", "--runs", str(tmp_path), "--results", str(tmp_path)]
    assert benchmark.main(words) == 1
    assert capsys.readouterr().out.count("FAILED: the run ended with 2") == len(benchmark.VARIANTS["caption-bbb"])


def test_keep_writes_the_captions_of_a_record_if_they_have_its_scores(benchmark, pictures, tmp_path, capsys):
    pytest.importorskip("pycocoevalcap.bleu.bleu")
    from bayesrnn.lab.tasks.captioning.captions import read_captions
    from bayesrnn.lab.tasks.captioning.evaluation import score_captions

    references = read_captions(pictures)
    found = [
        {
            "split": split, "draws": 0, "beam": 3, "length_penalty": 0.5,
            "captions": {name: {"caption": " ".join(each[0])} for name, each in references.split(split).items()},
        }
        for split in ("valid", "test")
    ]  # fmt: skip
    kept = {"weights": "abc", "samples": 0, "decode_samples": 0, "metrics": {}, "found": found}
    record = tmp_path / "results/caption-dropout/4.json"
    for folder in (tmp_path / "run", record.parent):
        folder.mkdir(parents=True)
    (tmp_path / "run/captions.json").write_text(json.dumps(kept))
    metrics = score_captions(kept, references)
    record.write_text(json.dumps({"metrics": metrics}))
    words = ["keep", "--data", str(pictures), "--results", str(tmp_path / "results"), "--run", str(tmp_path / "run")]
    assert benchmark.main([*words, "--record", str(record)]) == 0
    made = json.loads((tmp_path / "results/caption-texts/caption-dropout-4-captions.json").read_text())
    assert made["record"] == "caption-dropout/4.json"
    assert dict(zip(made["images"], made["mean"]["captions"], strict=True)) == {
        name: about["caption"] for name, about in found[1]["captions"].items()
    }
    record.write_text(json.dumps({"metrics": metrics | {"test_cider": metrics["test_cider"] + 0.1}}))
    with pytest.raises(SystemExit, match=r"cider of mean is .* has another value"):
        benchmark.main([*words, "--record", str(record)])
    with pytest.raises(SystemExit):
        benchmark.main(words)
    assert "keep needs --run and --record" in capsys.readouterr().err


def captions_file():
    """As ``evaluate`` writes it: five images, two penalties, with the mean and with three draws."""
    images = [f"{i}.jpg" for i in range(5)]
    found = []
    for split in ("valid", "test"):
        for penalty in (0.5, 0.7):
            about = {"split": split, "beam": 3, "length_penalty": penalty}
            tail = " far away" if penalty == 0.7 else ""
            for draws, word in ((0, "dog"), (3, "cat")):
                captions = {
                    image: {"caption": f"a {word} {i}{tail}", "entropy": 1.0, "mutual_information": 0.5 - i / 10}
                    for i, image in enumerate(images)
                }
                found.append({**about, "draws": draws, "captions": captions})
    return {"weights": "abc", "samples": 8, "decode_samples": 3, "found": found}


METRICS = {
    "beam": 3, "length_penalty": 0.7, "test_words": 5.0,
    "beam_mc": 3, "length_penalty_mc": 0.5, "test_words_mc": 3.0,
}  # fmt: skip


def test_what_is_kept_is_what_validation_chose_on_the_test_images(benchmark):
    made = benchmark.texts(captions_file(), METRICS)
    assert made["images"] == [f"{i}.jpg" for i in range(5)]
    assert made["mean"]["captions"][1] == "a dog 1 far away"
    assert made["draws"] == {"beam": 3, "length_penalty": 0.5, "captions": [f"a cat {i}" for i in range(5)]}
    alone = captions_file() | {"decode_samples": 0}
    alone["found"] = [one for one in alone["found"] if not one["draws"]]
    assert set(benchmark.texts(alone, METRICS)) == {"program", "weights", "split", "images", "mean"}
