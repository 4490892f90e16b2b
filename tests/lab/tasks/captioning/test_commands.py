import itertools
import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bayesrnn.lab.cli import app
from bayesrnn.lab.report import html as shades_
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.base import weights_digest
from bayesrnn.lab.tasks.captioning import evaluation as caption_evaluation
from bayesrnn.lab.tasks.captioning import request as galleries
from bayesrnn.lab.tasks.captioning import scores as caption_scores
from bayesrnn.lab.tasks.captioning import search as caption_search
from bayesrnn.lab.tasks.captioning.description import CaptionWord, Description, describe

CPU = torch.device("cpu")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def copies(runs, tmp_path):
    """The runs, where a test may write into them."""
    return {name: shutil.copytree(path, tmp_path / name) for name, path in runs.items()}


GRID = ("--samples", "2", "--beam", "3", "--length-penalty", "0.5")


class TestEvaluate:
    def test_a_model_that_has_learnt_says_what_is_there(self, copies, pictures):
        pytest.importorskip("pycocoevalcap.bleu.bleu")
        result = run("evaluate", copies["caption-dropout"], *GRID)
        assert result.exit_code == 0, result.output
        record = json.loads((copies["caption-dropout"] / "record.json").read_text())
        metrics = record["metrics"]
        assert metrics["test_perplexity"] < 2.2
        assert metrics["test_cider"] > 200
        assert metrics["test_bleu4"] > 60
        assert (metrics["beam"], metrics["length_penalty"], metrics["samples"]) == (3, 0.5, 2)
        assert metrics["draws_seed"] == 1
        assert len(metrics["decoding"]) == 1
        assert metrics["selective"]["entropy"][-1] == [1.0, pytest.approx(metrics["test_cider"])]
        assert {"test_bleu1_mc", "test_cider_mc", "test_perplexity_mc"} <= metrics.keys()
        assert 0 < metrics["human"]["bleu4"] < metrics["human"]["bleu1"] < 100
        found = json.loads((copies["caption-dropout"] / "captions.json").read_text())["found"]
        assert {(one["split"], one["draws"]) for one in found} == {
            (split, draws) for split in ("valid", "test") for draws in (0, 2)
        }
        right = 0
        for name, about in next(one for one in found if one["split"] == "test")["captions"].items():
            text = (pictures / "Flickr8k.token.txt").read_text()
            colour, thing = re.search(rf"{name}#0\tA (\w+) (\w+)", text).groups()
            right += colour in about["caption"] and thing in about["caption"]
        assert right >= 20, "of 24 test images"

    def test_captions_are_searched_for_once(self, copies, monkeypatch):
        pytest.importorskip("pycocoevalcap.bleu.bleu")
        folder = copies["caption-bbb"]
        first = run("evaluate", folder, *GRID)
        assert first.exit_code == 0, first.output
        before = json.loads((folder / "evaluation.json").read_text())
        (folder / "evaluation.json").unlink()
        calls = []

        def counted(*args, original=caption_search.find_captions, **options):
            calls.append(options["beam"])
            return original(*args, **options)

        monkeypatch.setattr(caption_search, "find_captions", counted)
        second = run("evaluate", folder, *GRID)
        assert second.exit_code == 0, second.output
        assert "Captions are those of" in second.output
        assert calls == []
        assert json.loads((folder / "evaluation.json").read_text()) == before
        assert run("evaluate", folder, *GRID, "--again").exit_code == 0
        assert len(calls) == 4, "both splits: the mean, and the average of two draws"
        assert run("evaluate", folder, *GRID[:-1], "0").exit_code == 0
        assert len(calls) == 8, "another setting is another search"

    def test_captions_of_fewer_draws_or_of_the_mean_alone(self, copies):
        pytest.importorskip("pycocoevalcap.bleu.bleu")
        folder = copies["caption-bbb"]
        for count, expected in ((1, {0, 1}), (0, {0}), (5, {0, 2})):  # never more than --samples
            result = run("evaluate", folder, *GRID, "--decode-samples", count)
            assert result.exit_code == 0, result.output
            found = json.loads((folder / "captions.json").read_text())["found"]
            assert {one["draws"] for one in found} == expected
            metrics = json.loads((folder / "evaluation.json").read_text())
            assert metrics["decode_samples"] == max(expected)
            assert ("test_cider_mc" in metrics) == (max(expected) > 0)
            assert "test_perplexity_mc" in metrics
        result = run("evaluate", folder, *GRID, "--decode-samples", -1)
        assert result.exit_code != 0
        assert "--decode-samples must be at least 0" in result.output

    def test_captions_of_someone_else_are_not_replaced(self, copies):
        file = copies["caption-bbb"] / "captions.json"
        file.write_text('{"annotations": []}')
        result = run("evaluate", copies["caption-bbb"], *GRID)
        assert result.exit_code == 2
        assert result.stderr == (
            f"bayesrnn: {file} was not written by bayesrnn evaluate, and will not be replaced; move it.\n"
        )
        assert file.read_text() == '{"annotations": []}'

    def test_captions_of_other_images_are_not_the_runs(self, copies, pictures, tmp_path):
        """Nor are the run's, which are kept, taken for theirs."""
        pytest.importorskip("pycocoevalcap.bleu.bleu")
        folder = copies["caption-bbb"]
        assert run("evaluate", folder, *GRID).exit_code == 0
        before = {name: (folder / name).read_bytes() for name in ("captions.json", "evaluation.json", "record.json")}
        other = shutil.copytree(pictures, tmp_path / "other")
        test = (other / "Flickr_8k.testImages.txt").read_text().splitlines()
        (other / "Flickr_8k.testImages.txt").write_text("\n".join(test[:10]) + "\n")
        result = run("evaluate", folder, *GRID, "--data", other)
        assert result.exit_code == 0, result.output
        assert {name: (folder / name).read_bytes() for name in before} == before
        (file,) = folder.glob("evaluation-other-*.json")
        own, found = json.loads(before["evaluation.json"]), json.loads(file.read_text())["metrics"]
        assert found["test_perplexity"] != own["test_perplexity"]
        assert found["valid_perplexity"] == pytest.approx(own["valid_perplexity"])

    def test_captions_of_an_older_program(self, copies):
        """Files of earlier versions have the captions of single draws too, which are not scored."""
        pytest.importorskip("pycocoevalcap.bleu.bleu")
        folder = copies["caption-bbb"]
        assert run("evaluate", folder, *GRID).exit_code == 0
        kept = json.loads((folder / "captions.json").read_text())
        task = open_run(folder, CPU).task(None, CPU)
        metrics = caption_evaluation.score_captions(kept, task.references)
        assert "test_cider_mc" in metrics
        single = {"split": "test", "draws": 2, "consensus": True, "captions": {}}
        assert (
            caption_evaluation.score_captions({**kept, "found": [*kept["found"], single]}, task.references) == metrics
        )

    def test_other_weights_are_another_search(self, copies):
        folder = copies["caption-bbb"]
        digests = []
        for name in ("caption-bbb", "caption-dropout"):
            digests.append(weights_digest(open_run(copies[name], CPU).model))
        assert digests[0] != digests[1]
        assert digests[0] == weights_digest(open_run(folder, CPU).model)

    def test_scores_can_be_computed_elsewhere(self, copies, monkeypatch):
        """Where pycocoevalcap is missing the captions are kept, and later scored without the model's help."""
        pytest.importorskip("pycocoevalcap.bleu.bleu")
        folder = copies["caption-variational"]
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "pycocoevalcap.bleu.bleu", None)
            result = run("evaluate", folder, *GRID)
            assert result.exit_code == 0, result.output
            assert "captions are kept" in result.output
        metrics = json.loads((folder / "evaluation.json").read_text())
        assert "test_perplexity_mc" in metrics
        assert "test_bleu1" not in metrics
        monkeypatch.setattr(caption_search, "beam_search", None)
        monkeypatch.setattr(caption_search, "log_likelihood", None)
        assert run("evaluate", folder, *GRID).exit_code == 0
        assert "test_bleu1" in json.loads((folder / "record.json").read_text())["metrics"]

    def test_the_setting_is_chosen_on_validation(self, runs, monkeypatch):
        """Made-up scores: the test split's own best setting is not looked at."""
        task = open_run(runs["caption-dropout"], CPU).task(None, CPU)
        task.folder = None
        made = {"valid": {0.0: 10.0, 1.0: 30.0}, "test": {0.0: 50.0, 1.0: 5.0}}

        def score(one, references):
            value = made[one["split"]][one["length_penalty"]]
            return dict.fromkeys(caption_scores.SCORES, value), dict.fromkeys(one["captions"], value)

        monkeypatch.setattr(caption_evaluation, "_score", score)
        monkeypatch.setattr(caption_scores, "available", lambda: True)
        metrics = caption_evaluation.evaluate(
            task,
            samples=0,
            decode_samples=0,
            seed=1,
            beams=(2,),
            length_penalties=(0.0, 1.0),
            again=False,
            say=lambda text: None,
        )
        assert metrics["length_penalty"] == 1.0
        assert (metrics["valid_cider"], metrics["test_cider"]) == (30.0, 5.0)
        assert [row["length_penalty"] for row in metrics["decoding"]] == [0.0, 1.0]

    def test_the_setting_has_the_best_mean_of_all_five_scores(self, monkeypatch):
        """Not the best CIDEr: a setting that loses more BLEU than it wins there is not taken."""
        made = {0.5: (62.0, 44.0, 30.0, 20.0, 47.0), 0.7: (61.0, 43.0, 29.0, 19.0, 48.0)}

        def score(one, references):
            each = dict.fromkeys(one["captions"], 1.0)
            return dict(zip(caption_scores.SCORES, made[one["length_penalty"]], strict=True)), each

        monkeypatch.setattr(caption_evaluation, "_score", score)
        about = {"caption": "a dog", "entropy": 1.0, "mutual_information": 0.1, "surprisal": 1.0}
        found = [
            {"split": split, "beam": 3, "length_penalty": penalty, "captions": {"1.jpg": about}}
            for split in ("valid", "test")
            for penalty in made
        ]
        metrics = caption_evaluation._best_scores(found, None, "_mc")
        assert metrics["length_penalty_mc"] == 0.5
        assert metrics["valid_cider_mc"] == 47.0

    def test_selective_keeps_the_least_doubtful(self):
        captions = {f"{i}": {"entropy": i, "mutual_information": -i, "surprisal": i} for i in range(10)}
        cider = {f"{i}": float(10 * i) for i in range(10)}
        found = caption_evaluation._selective(captions, cider)
        assert found["entropy"][0] == [0.2, 5.0]
        assert found["mutual_information"][0] == [0.2, 85.0]
        assert all(rows[-1] == [1.0, 45.0] for rows in found.values())

    def test_people_against_people(self):
        """The first caption of each image is scored, the others are the references; with one there is no score."""
        pytest.importorskip("pycocoevalcap.bleu.bleu")
        same = {f"{i}": [list("abcd"), list("abcd")] for i in range(3)}
        assert caption_evaluation._human(same)["bleu4"] == pytest.approx(100)
        other = {f"{i}": [list("abcd"), list("efgh")] for i in range(3)}
        assert caption_evaluation._human(other)["bleu1"] < 1
        assert caption_evaluation._human({"a": [["b"]]}) == {}

    def test_bad_options(self, runs):
        result = run("evaluate", runs["caption-bbb"], "--beam", "0")
        assert result.exit_code == 2
        assert "A beam is at least 1" in result.output


class TestDescribe:
    def test_the_average_and_the_draws(self, runs, pictures):
        trained = open_run(runs["caption-bbb"], CPU)
        features = torch.from_numpy(np.load(pictures / "features_f16.npy")[:2].astype(np.float32))
        mean = describe(trained, ["a", "b"], features, samples=3, draws=2)
        assert [len(one.draws) for one in mean] == [2, 2]
        assert all(word.entropy > 0 and word.mutual_information > 0 for one in mean for word in one.words)
        again = describe(trained, ["a", "b"], features, samples=3, draws=2)
        assert again == mean, "the same seed, the same draws"
        other = describe(trained, ["a", "b"], features, samples=3, draws=2, seed=2)
        assert [w.entropy for w in other[0].words] != [w.entropy for w in mean[0].words]


class TestCaption:
    def words(self, runs, pictures, *more, name="caption-bbb"):
        given = ("--features", pictures / "features_f16.npy", "--ids", "3_0.jpg,3_1.jpg", "--samples", "3")
        return run("caption", runs[name], *given, *more)

    def test_prints_words_with_their_uncertainty(self, runs, pictures):
        result = self.words(runs, pictures, "--draws", "2")
        assert result.exit_code == 0, result.output
        assert result.output.count("mutual information") == 2
        assert "3_1.jpg: " in result.output
        assert result.output.count("draw 2: ") == 2

    def test_json(self, runs, pictures):
        result = self.words(runs, pictures, "--json", "--ids", "3_2.jpg")
        lines = [json.loads(line) for line in result.output.splitlines()]
        assert [line["image"] for line in lines] == ["3_0.jpg", "3_1.jpg", "3_2.jpg"]
        assert lines[0]["caption"] == " ".join(word["word"] for word in lines[0]["words"])
        assert set(lines[0]["words"][0]) == {"word", "probability", "entropy", "mutual_information"}

    def test_the_right_words_for_the_right_picture(self, runs, pictures):
        result = self.words(runs, pictures, "--json", name="caption-dropout")
        lines = [json.loads(text) for text in result.output.splitlines()]
        truth = (pictures / "Flickr8k.token.txt").read_text()
        for line in lines:
            colour, thing = re.search(rf"{line['image']}#0\tA (\w+) (\w+)", truth).groups()
            assert colour in line["caption"]
            assert thing in line["caption"]

    def test_beam_and_penalty_are_those_that_validation_chose(self, copies, pictures):
        folder = copies["caption-bbb"]
        (folder / "evaluation.json").write_text(json.dumps({"beam": 7, "length_penalty": 0.25}))
        from bayesrnn.lab.tasks.captioning.description import settings

        assert settings(open_run(folder, CPU)) == {"beam": 7, "length_penalty": 0.25}
        (folder / "evaluation.json").write_text("[]")
        assert settings(open_run(folder, CPU)) == {"beam": 3, "length_penalty": 0.5}

    def test_a_gallery_without_images(self, runs, pictures, tmp_path):
        page = tmp_path / "page.html"
        result = self.words(runs, pictures, "--gallery", page)
        assert result.exit_code == 0, result.output
        text = page.read_text("utf-8")
        assert text.count('class="card"') == 2
        assert "<img" not in text

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ((), "Give image files, or --features FILE with --ids"),
            (("x.jpg", "--features", "f.npy"), "one of the two"),
            (("x.jpg", "--ids", "a"), "--ids go with --features"),
            (("--features", "f.npy"), "--features needs --ids"),
            (("x.jpg", "--gallery", "x.png"), "should end in .html"),
            (
                ("x.jpg", "--gallery", "nowhere/x.html"),
                "nowhere is not a folder; make it first, or choose another --gallery",
            ),
            (("--features", "f.npy", "--ids", "a"), "f.npy cannot be read"),
        ],
    )
    def test_bad_arguments(self, runs, words, message):
        result = run("caption", runs["caption-bbb"], *words)
        assert result.exit_code == 2
        assert message in result.output
        assert len(result.output.strip().splitlines()) == 1

    def test_a_gallery_replaces_no_pipe(self, runs, tmp_path):
        os.mkfifo(tmp_path / "x.html")
        result = run("caption", runs["caption-bbb"], "x.jpg", "--gallery", tmp_path / "x.html")
        assert result.exit_code == 2
        assert "x.html is not a regular file; choose another --gallery." in result.output.replace("\n", " ")
        assert (tmp_path / "x.html").is_fifo()

    def test_unknown_ids_and_other_features(self, runs, pictures, tmp_path):
        result = run("caption", runs["caption-bbb"], "--features", pictures / "features_f16.npy", "--ids", "none.jpg")
        assert result.exit_code == 2
        assert "no row for none.jpg" in result.output
        np.save(tmp_path / "f.npy", np.zeros((1, 3), np.float32))
        (tmp_path / "filenames.json").write_text('["a.jpg"]')
        result = run("caption", runs["caption-bbb"], "--features", tmp_path / "f.npy", "--ids", "a.jpg")
        assert result.exit_code == 2
        assert "was trained on 24 features per image, these have 3" in result.output

    def test_images(self, runs, tmp_path, monkeypatch):
        """With the encoder in place of which 24 numbers stand: the run's features are made up."""
        image_module = pytest.importorskip("PIL.Image")
        from bayesrnn.lab.tasks.captioning import request

        file = tmp_path / "<odd> name.png"
        image_module.new("RGB", (900, 700), (200, 30, 30)).save(file)
        monkeypatch.setattr(request, "encode", lambda files, device=None: torch.ones(len(files), 24))
        page = tmp_path / "page.html"
        result = run("caption", runs["caption-bbb"], file, "--samples", "2", "--gallery", page)
        assert result.exit_code == 0, result.output
        text = page.read_text("utf-8")
        assert "&lt;odd&gt; name.png" in text
        assert "<odd>" not in text
        (data,) = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', text)
        assert len(data) < 40_000
        assert "http" not in text

    def test_a_run_of_another_task(self, text_folder, tmp_path):
        trained = tmp_path / "run"
        words = [
            "train",
            "small-plain",
            "hidden=4",
            "epochs=1",
            "--data",
            text_folder,
            "--out",
            trained,
            "--device",
            "cpu",
        ]
        result = run(*words)
        assert result.exit_code == 0, result.output
        np.save(tmp_path / "f.npy", np.zeros((1, 3), np.float32))
        (tmp_path / "filenames.json").write_text('["a.jpg"]')
        result = run("caption", trained, "--features", tmp_path / "f.npy", "--ids", "a.jpg")
        assert result.exit_code == 2
        assert "is a language run; this command is for captioning runs. For this run: bayesrnn predict" in result.output


def luminance(colour):
    """WCAG 2's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


class TestGallery:
    @pytest.mark.parametrize(("shades", "ink"), [(shades_.LIGHT, "light"), (shades_.DARK, "dark")])
    def test_words_can_be_read_on_every_shade_and_shades_told_apart(self, shades, ink):
        tones = [luminance(shade) for shade in shades]
        text = luminance(shades_.INK[ink])
        for tone in tones:
            high, low = max(tone, text), min(tone, text)
            assert (high + 0.05) / (low + 0.05) >= 4.5
        steps = [a - b for a, b in itertools.pairwise(tones)]
        assert all(step > 0 for step in steps) or all(step < 0 for step in steps), "darker to darker, for any eye"

    def test_levels(self):
        assert [shades_.level(v, galleries.ENTROPY_LEVELS) for v in (0, 0.5, 1.9, 2, 9)] == [0, 1, 2, 3, 4]

    def test_shade_and_line_follow_the_uncertainty(self):
        words = [CaptionWord("a<b", 0.9, 0.1, 0.0), CaptionWord("dog", 0.2, 3.5, 0.15)]
        page = galleries.gallery([Description("i&j.jpg", words, ["a <cat>"])], [None], title="Captions")
        assert '<span class="w s0 i0"' in page
        assert '<span class="w s4 i3" title="entropy 3.50, mutual information 0.150 nats">dog</span>' in page
        assert "a&lt;b" in page
        assert "a &lt;cat&gt;" in page
        assert "i&amp;j.jpg" in page
        assert "width=device-width" in page
        assert "prefers-color-scheme: dark" in page
        assert "<script" not in page
