"""The captioning comparison: a search on validation with as many tries for each method, then the chosen settings.

    python benchmarks/captioning.py search --data flickr8k --jobs 4     # 8 runs of each method, one seed
    python benchmarks/captioning.py final --data flickr8k --seeds 3     # the best of each, trained and evaluated
    python benchmarks/captioning.py score --data flickr8k               # BLEU and CIDEr of final runs without them
    python benchmarks/captioning.py keep --data flickr8k --run runs/caption-bbb/1 --record results/caption-bbb/1.json

Runs are processes, ``--jobs`` at a time. Both commands can be stopped and started again: finished runs are kept,
others go on from their checkpoint. Records go to ``results/caption-search/`` and ``results/caption-METHOD/SEED.json``.
What is compared in the search is the validation perplexity; the test images choose nothing. ``score`` is for runs that
were evaluated where pycocoevalcap was missing: it needs their record.json and captions.json, and no weights. ``keep``
writes the test captions that a record's scores are of to ``results/caption-texts/``, if they do have these scores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesrnn.lab.runs.record import EVALUATION, RECORD, add_evaluation, read
from bayesrnn.lab.tasks.captioning.evaluation import WAYS, ways
from bayesrnn.lab.tasks.captioning.task import Captioning

(CAPTIONS,) = Captioning.artifacts

ADAM = ["train.optimizer=adam", "data.batch_size=100", "train.patience=8"]
COLD = [*ADAM, "train.lr=0.002", "train.decay_after=15", "train.decay=0.92", "train.epochs=50"]
SHORT = ["train.epochs=40", "train.decay=0.9"]
VARIANTS: dict[str, dict[str, list[str]]] = {
    "caption-dropout": {
        "recipe": [],
        "less": ["model.step_dropout=0.35"],
        "more": ["model.step_dropout=0.6"],
        "image": ["model.image_dropout=0.7"],
        "tied": ["model.tied=true"],
        "wide": ["model.hidden=1024", "model.step_dropout=0.6"],
        "wider": ["model.hidden=1536", "model.step_dropout=0.7"],
        "slow": ["train.lr=0.0005", "train.decay_after=15"],
    },
    "caption-variational": {
        "recipe": [],
        "less": ["model.word_dropout=0.1", "model.input_dropout=0.2", "model.recurrent_dropout=0.2"],
        "more": ["model.input_dropout=0.5", "model.output_dropout=0.6"],
        "recurrent": ["model.recurrent_dropout=0.1"],
        "image": ["model.image_dropout=0.7"],
        "tied": ["model.tied=true"],
        "wide": ["model.hidden=1024", "model.input_dropout=0.5", "model.output_dropout=0.6"],
        "wider": ["model.hidden=1536", "model.input_dropout=0.6", "model.output_dropout=0.7"],
    },
    "caption-bbb": {
        "recipe": [],
        "adam": [*ADAM, "train.lr=0.003", "train.decay_after=25"],
        "published": SHORT,
        "published-units": [*SHORT, "model.image_dropout=0.5", "model.output_dropout=0.3"],
        "cold": [*COLD, "model.kl_weight=0.1"],
        "colder": [*COLD, "model.kl_weight=0.03"],
        "cold-units": [*COLD, "model.kl_weight=0.1", "model.image_dropout=0.5", "model.output_dropout=0.3"],
        "colder-tied": [*COLD, "model.kl_weight=0.03", "model.tied=true", "model.image_dropout=0.5"],
    },
}
"""One name, one try. "published": SGD with the faster decay of arXiv 1704.02798; "cold": less than the whole KL."""


@dataclass(frozen=True)
class Job:
    """One run, and where its record goes."""

    recipe: str
    overrides: list[str]
    seed: int
    run: Path
    record: Path
    evaluate: bool


def variants(added: list[str]) -> dict[str, dict[str, list[str]]]:
    """The tries, with those of ``--variant RECIPE:NAME:KEY=VALUE,KEY=VALUE``."""
    made = {recipe: dict(tries) for recipe, tries in VARIANTS.items()}
    for text in added:
        recipe, _, rest = text.partition(":")
        name, colon, changed = rest.partition(":")
        if recipe not in made or not name or not colon:
            raise SystemExit(f"{text!r} is no variant; write RECIPE:NAME:KEY=VALUE,KEY=VALUE")
        made[recipe][name] = [part for part in changed.split(",") if part]
    return made


def search_jobs(arguments: argparse.Namespace) -> list[Job]:
    # The slowest method first: it would be waited for at the end.
    jobs = []
    for recipe, tries in reversed(variants(arguments.variant).items()):
        if arguments.only and recipe not in arguments.only:
            continue
        for name, changed in tries.items():
            label = f"{recipe.removeprefix('caption-')}-{name}"
            record = arguments.results / "caption-search" / f"{label}.json"
            run = arguments.runs / "caption-search" / label
            jobs.append(Job(recipe, [*changed, *arguments.set], 1, run, record, evaluate=False))
    return jobs


def best(results: Path) -> dict[str, list[str]]:
    """The overrides of each method with the lowest validation perplexity in the search."""
    found: dict[str, tuple[float, list[str]]] = {}
    for path in sorted((results / "caption-search").glob("*.json")):
        record = read(path)
        tried = (record.metric("valid_perplexity"), record.overrides)
        found[record.recipe] = min(found.get(record.recipe, tried), tried, key=lambda pair: pair[0])
    return {recipe: overrides for recipe, (_, overrides) in found.items()}


def final_jobs(arguments: argparse.Namespace) -> list[Job]:
    chosen = best(arguments.results)
    jobs = []
    for seed in range(1, arguments.seeds + 1):
        for recipe in reversed(VARIANTS):
            if arguments.only and recipe not in arguments.only:
                continue
            found = chosen.get(recipe, [])
            overrides = [*found, *(text for text in arguments.set if text not in found)]
            run, record = arguments.runs / recipe / str(seed), arguments.results / recipe / f"{seed}.json"
            jobs.append(Job(recipe, overrides, seed, run, record, evaluate=True))
    return jobs


def score(job: Job, arguments: argparse.Namespace) -> str:
    """Scores of a run's captions into its record."""
    from bayesrnn.lab.tasks.captioning.captions import read_captions
    from bayesrnn.lab.tasks.captioning.evaluation import score_captions

    kept = json.loads((job.run / CAPTIONS).read_text("utf-8"))
    add_evaluation(job.run, score_captions(kept, read_captions(arguments.data)))
    return work(job, arguments)


def texts(kept: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The test captions that the scores in ``metrics`` are of, small enough to keep beside a record.

    Images in one order, and for each way (see ``WAYS``) its setting and a caption per image. Captions are the model's;
    no reference and no image is in it.
    """
    made: dict[str, Any] = {"program": "bayesrnn", "weights": kept["weights"], "split": "test"}
    for suffix, found in ways(kept).items():
        setting = {name: metrics[f"{name}{suffix}"] for name in ("beam", "length_penalty")}
        captions = _test_captions(found, setting)
        images = made.setdefault("images", sorted(captions))
        made[WAYS[suffix]] = {**setting, "captions": [captions[image]["caption"] for image in images]}
    return made


def _test_captions(found: Sequence[Mapping[str, Any]], setting: Mapping[str, Any]) -> Mapping[str, dict[str, Any]]:
    """By image, what was found for the test images with this beam and length penalty."""
    wanted = {"split": "test", **setting}
    captions: Mapping[str, dict[str, Any]] = next(
        one["captions"] for one in found if all(one[key] == value for key, value in wanted.items())
    )
    return captions


def keep(run: Path, record: Path, arguments: argparse.Namespace) -> Path:
    """The captions behind a record's test scores, in a file of their own; refused if they do not have these scores."""
    from bayesrnn.lab.tasks.captioning.captions import read_captions, words
    from bayesrnn.lab.tasks.captioning.scores import scores

    metrics = read(record).metrics
    made = texts(json.loads((run / CAPTIONS).read_text("utf-8")), metrics)
    references = read_captions(arguments.data).test
    for suffix, way in WAYS.items():
        if way in made:
            captions = dict(zip(made["images"], map(words, made[way]["captions"]), strict=True))
            for name, value in scores(captions, references)[0].items():
                if abs(value - metrics[f"test_{name}{suffix}"]) > 1e-6:
                    raise SystemExit(f"{run}: {name} of {way} is {value}, and {record} has another value")
    made = {"record": f"{record.parent.name}/{record.name}", **made}
    path = arguments.results / "caption-texts" / f"{record.parent.name}-{record.stem}-captions.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=0) + "\n", "utf-8")
    return path


def work(job: Job, arguments: argparse.Namespace) -> str:
    """Train (or go on), evaluate, keep the record; returns a line on it."""
    started = time.time()
    program = [sys.executable, "-m", "bayesrnn"]
    device = ["--device", arguments.device] if arguments.device else []
    if not (job.run / RECORD).exists():
        again = "--resume" if (job.run / "last.safetensors").exists() else "--force"
        settings = ["--seed", str(job.seed), "--out", str(job.run), again, "--data", arguments.data, *device]
        _call([*program, "train", job.recipe, *job.overrides, *settings], job.run.parent / f"{job.run.name}.log")
    if job.evaluate and not (job.run / EVALUATION).exists():
        asked = ["--samples", str(arguments.samples)] if arguments.samples is not None else []
        line = [*program, "evaluate", str(job.run), *asked, "--data", arguments.data, *device]
        _call(line, job.run.parent / f"{job.run.name}.evaluate.log")
    record = read(job.run / RECORD)
    job.record.parent.mkdir(parents=True, exist_ok=True)
    record.write(job.record)
    keys = ["valid_perplexity", "test_bleu4", "test_cider"]
    keys += ["test_perplexity"] if job.evaluate else []  # not to be looked at in a search
    shown = ", ".join(f"{key} {value:.2f}" for key in keys if (value := record.number(key)) is not None)
    changed = " ".join(job.overrides) or "as it is"
    what = f"{job.recipe} seed {job.seed} ({changed})"
    return f"{what}: best epoch {record.metric('best_epoch')}, {shown}; {time.time() - started:.0f} s"


def _call(line: list[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        status = subprocess.run(line, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if status:
        lines = log.read_text("utf-8", errors="replace").strip().splitlines()
        raise RuntimeError(f"{' '.join(line[2:])} ended with {status}: {lines[-1] if lines else 'no output'}")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "final", "score", "keep"))
    parser.add_argument("--data", required=True, help="a Flickr8k or COCO folder")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to this number of the final runs")
    parser.add_argument("--only", action="append", choices=tuple(VARIANTS), help="this recipe; may be given again")
    parser.add_argument("--variant", action="append", default=[], help="one more try, RECIPE:NAME:KEY=VALUE,KEY=VALUE")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for every run")
    parser.add_argument("--samples", type=int, help="draws of the evaluation")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--device")
    parser.add_argument("--run", type=Path, help="of keep: the run's folder, with captions.json")
    parser.add_argument("--record", type=Path, help="of keep: the record of that run in results/")
    arguments = parser.parse_args(words)
    if arguments.what == "keep":
        if arguments.run is None or arguments.record is None:
            parser.error("keep needs --run and --record")
        print(keep(arguments.run, arguments.record, arguments))
        return 0
    jobs = search_jobs(arguments) if arguments.what == "search" else final_jobs(arguments)
    failed = 0

    def one(job: Job) -> None:
        nonlocal failed
        try:
            print((score if arguments.what == "score" else work)(job, arguments), flush=True)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            failed += 1
            print(f"FAILED: {error}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, jobs))
    for recipe, overrides in best(arguments.results).items():
        print(f"best on validation, {recipe}: {' '.join(overrides) or 'as it is'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
