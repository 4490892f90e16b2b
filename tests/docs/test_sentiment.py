import json
import random
import re

import pytest

from bayesrnn.errors import UserError
from docs.build import sentiment as report
from docs.build import sentiment_grid as report_grid
from docs.build import sentiment_plots as plots

PNG = b"\x89PNG\r\n\x1a\n"


def figures(rmse, *, draws, mc=0.0, coverage=0.9, source):
    test = rmse + source.uniform(-0.0005, 0.0005)
    found = {
        "valid_rmse": test - 0.001,
        "test_rmse": test,
        "test_review_rmse": test - 0.02,
        "samples": 50 if draws else 0,
        "noise": 0.13,
        "test_log_likelihood": 0.5,
        "intervals": [
            {"level": level, "coverage": level + coverage - 0.9, "width": level} for level in (0.5, 0.8, 0.9, 0.95)
        ],
        "uncertainty": None,
    }
    if draws:
        found |= {"valid_rmse_mc": test - 0.001 + mc, "test_rmse_mc": test + mc}
        found["uncertainty"] = {
            "risk": {
                "coverage": [i / 20 for i in range(1, 21)],
                "rmse": [test * (0.8 + i / 100) for i in range(1, 21)],
            },
            "bins": {"spread": [0.01 * i for i in range(1, 11)], "rmse": [0.1 + 0.01 * i for i in range(1, 11)]},
            "rank_correlation": 0.2,
        }
    return found


def record(cell, variant, seed, *, end, best=0.15, split="review", coverage=0.9, mc=-0.001, **model):
    source = random.Random(f"{cell}{variant}{seed}{model}")
    draws = variant != "plain"
    curve = [0.19 - 0.01 * min(i, 4) + (end - best) * max(i - 4, 0) / 5 for i in range(10)]
    curves = {"test_rmse": curve, **({"test_rmse_mc": [c + mc for c in curve]} if draws else {})}
    return {
        "recipe": f"sentiment-{cell}-{variant}",
        "seed": seed,
        "device": "cpu (x)",
        "versions": {"torch": "2.11"},
        "overrides": [],
        "settings": {"data": {"split": split}, "model": model},
        "constant_rmse": 0.1918,
        "curves": curves,
        "metrics": {
            "best_epoch": 5,
            **figures(best, draws=draws, mc=mc, source=source),
            "end": figures(end, draws=draws, mc=mc, coverage=coverage, source=source),
        },
    }


def write(folder, *records, name=None):
    for one in records:
        place = folder / (name or one["recipe"])
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{one['seed']}.json").write_text(json.dumps(one))
    return folder


@pytest.fixture
def results(tmp_path):
    made = [
        record(cell, variant, seed, end=end)
        for cell in ("lstm", "gru")
        for variant, end in (("plain", 0.165), ("naive", 0.16), ("variational", 0.15), ("bbb", 0.155))
        for seed in (1, 2, 3)
    ]
    return write(tmp_path, *made)


class TestText:
    def test_table(self, results):
        lines = report.block(results).splitlines()
        assert lines[2].startswith("| LSTM, no dropout | 0.165")
        assert "| – |" in lines[2]  # no draws
        assert sum(line.startswith("| ") for line in lines) == 1 + 8
        assert "10 epochs; MC of 50 draws" in lines[-1]
        assert "a constant gives 0.1918" in lines[-1]

    def test_findings_that_hold(self, results):
        said = "\n".join(report.findings(report.load(results)))
        assert "NOT" not in said
        assert "ABOVE" not in said
        assert "LSTM, end of training: variational is 0.01" in said
        assert "3 of 3 seeds" in said
        assert "cover 90.0% to 90.0%" in said

    def test_findings_that_do_not_hold_say_so(self, tmp_path):
        write(
            tmp_path,
            *(record("lstm", "plain", s, end=0.15) for s in (1, 2)),
            *(record("lstm", "naive", s, end=0.1495) for s in (1, 2)),
            *(record("lstm", "variational", s, end=0.15, mc=0.002, coverage=0.83) for s in (1, 2)),
        )
        said = report.findings(report.load(tmp_path))
        assert "ABOVE no dropout" in said[0]
        assert "NOT more" in said[0]
        assert "MC) is at least as good as the standard approximation does NOT hold: 0 of 2 seeds" in said[4]
        assert "NOT all" in said[5]

    def test_how_errors_rise_is_said_with_draws_and_without(self, tmp_path):
        made = [record("lstm", v, 1, end=0.15) for v in ("naive", "variational")]
        for one, slope in zip(made, (0.0001, 0.0004), strict=True):
            one["settings"]["evaluate"] = {"epoch_samples": 7}
            curve = [0.14 + slope * i for i in range(30)]
            one["curves"] = {"test_rmse": curve, "test_rmse_mc": [0.15 + 2 * slope * i for i in range(30)]}
        said = "\n".join(report.findings(report.load(write(tmp_path, *made))))
        assert "to the last, MC of 7 draws after each epoch: naive dropout +0.0058, variational +0.0232." in said
        assert "to the last, standard: naive dropout +0.0029, variational +0.0116." in said
        assert (
            "epoch 10 to 30, MC (means of 5 epochs): variational +0.0160, naive dropout +0.0040; the lead of "
            "variational shrinks from -0.0042 to -0.0162." in said
        )
        assert "epoch 10 to 30, standard (means of 5 epochs): variational +0.0080, naive dropout +0.0020;" in said
        made[0]["curves"] = {name: curve[:20] for name, curve in made[0]["curves"].items()}
        assert "means of 5 epochs" not in "\n".join(report.findings(report.load(write(tmp_path, *made)))), "too short"

    def test_draws_with_all_words_are_judged_apart(self, tmp_path):
        records = [record("gru", "variational", s, end=0.15, mc=0.002) for s in (1, 2, 3)]
        for one, better in zip(records, (True, True, False), strict=True):
            end = one["metrics"]["end"]
            end["test_rmse_mc_all_words"] = end["test_rmse"] - (0.001 if better else -0.001)
        write(tmp_path, *records)
        said = "\n".join(report.findings(report.load(tmp_path)))
        assert (
            "the mean of the draws (MC) is at least as good as the standard approximation does NOT hold: 0 of 3" in said
        )
        assert (
            "draws that keep all words is at least as good as the standard approximation does NOT hold: 2 of 3" in said
        )
        del records[0]["metrics"]["end"]["test_rmse_mc_all_words"]
        write(tmp_path, *records)
        said = "\n".join(report.findings(report.load(tmp_path)))  # of those seeds that have it
        assert (
            "draws that keep all words is at least as good as the standard approximation does NOT hold: 1 of 2" in said
        )
        for one in records[1:]:
            del one["metrics"]["end"]["test_rmse_mc_all_words"]
        write(tmp_path, *records)
        assert "keep all words" not in "\n".join(report.findings(report.load(tmp_path)))

    def test_intervals(self, results):
        text = report.interval_block(results)
        assert "| 50% | 80% | 90% | 95% |" in text
        assert "0.900 ± 0.000" in text

    def test_slopes_are_said_where_all_are_measured(self, tmp_path):
        one = record("lstm", "variational", 1, end=0.15)
        assert "slope" not in report.block(write(tmp_path, one))
        one["metrics"]["end"] |= {"test_slope": 0.8, "test_slope_mc": 1.21, "test_slope_mc_all_words": 0.9}
        assert "0.80 of the standard approximation, 1.21 of MC, 0.90 of MC that keeps all words" in report.block(
            write(tmp_path, one)
        )

    def test_figures_by_length(self, tmp_path):
        """Means over the seeds that have them."""
        made = [record("lstm", "variational", seed, end=0.15) for seed in (1, 2, 3)]
        for one, rmse in zip(made, (0.18, 0.2), strict=False):
            end = one["metrics"]["end"]
            names = ("spread", "predictions_sd", "targets_sd", "coverage", "noise")
            short = {"words": 25, "count": 60, "rmse": rmse, **dict.fromkeys(names, 0.03)}
            end["lengths"] = [short, {**short, "words": 200, "count": 140, "rmse": 0.14}]
            risk = {"coverage": [i / 20 for i in range(1, 21)], "rmse": [0.12] * 20}
            end["uncertainty_with_noise"] = {**end["uncertainty"], "risk": risk}
        text = report.length_block(write(tmp_path, *made))
        assert "| LSTM, variational, 1 to 25 words | 60 | 0.1900 | 0.0300 |" in text
        assert "| LSTM, variational, 26 to 200 words | 140 | 0.1400 |" in text
        assert re.search(r"most certain tenth: 0\.1\d{3} by the spread of the draws, 0\.1200 with the noise", text)
        assert text.endswith("2 seeds, 50 draws.\n\nEnd of training.")
        assert plots.figures(tmp_path)["sentiment-uncertainty.png"].startswith(PNG)

    def test_trials_of_the_weight_of_the_kl(self, tmp_path):
        made = [record("lstm", "bbb", seed, end=0.15, kl_weight=weight) for seed, weight in ((1, 0.01), (2, 1.0))]
        for one in made:
            one["curves"] |= {"valid_rmse": [0.2, 0.14, 0.15], "train_rmse": [0.2, 0.13], "kl": [9e3, 1234.0]}
            one["overrides"] = ["model.hidden=24", f"model.kl_weight={one['settings']['model']['kl_weight']:g}"]
        lines = report_grid.trial_block(write(tmp_path, *made, name="sentiment-trials")).splitlines()
        assert lines[2] == "| 1 | 0.1400 | 0.1500 | 0.1300 | 1,234 |", "the whole KL first"
        assert lines[-1] == "sentiment-lstm-bbb with model.hidden=24; on cpu (x), torch 2.11. One seed."

    def test_changed_settings_are_named(self, tmp_path):
        one = record("lstm", "plain", 1, end=0.16)
        one["overrides"] = ["train.epochs=10"]
        assert "Changed settings: train.epochs=10." in report.block(write(tmp_path, one))

    def test_nothing_yet(self, tmp_path):
        for block in report.BLOCKS.values():
            assert block(tmp_path) == "No run is recorded yet."
        assert plots.figures(tmp_path) == {}

    def test_the_authors_division_is_kept_apart(self, results):
        write(results, record("lstm", "plain", 1, end=0.14, split="chunk"), name="sentiment-lstm-plain-chunk")
        (row,) = [line for line in report.division_block(results).splitlines() if line.startswith("| LSTM")]
        cells = row.split(" | ")
        assert float(cells[1]) == pytest.approx(0.14, abs=0.001)
        assert cells[2] == "–", "no draws without noise"
        assert cells[4:6] == ["10", "1"], "epochs and seeds"
        assert cells[6].startswith("0.165"), "the division by review beside it"
        assert len(report.load(results)["lstm", "plain"]) == 3
        write(results, record("lstm", "plain", 9, end=0.14, split="chunk"), name="sentiment-lstm-plain")
        with pytest.raises(UserError, match="not divided by review"):
            report.load(results)

    @pytest.mark.parametrize("text", ["{}", "no json", '{"metrics": 3}', '{"metrics": {"end": null}}'])
    def test_what_is_no_record(self, tmp_path, text):
        (tmp_path / "sentiment-lstm-plain").mkdir()
        (tmp_path / "sentiment-lstm-plain" / "1.json").write_text(text)
        with pytest.raises(UserError, match=r"1\.json is not the record of a sentiment run"):
            report.load(tmp_path)


VALUES = {(u, e): 0.15 + 0.01 * abs(u - 0.25) + 0.02 * abs(e - 0.5) for u in (0.0, 0.25, 0.5) for e in (0.0, 0.5)}


class TestGrid:
    def runs(self, tmp_path):
        for number, ((u, e), value) in enumerate(VALUES.items()):
            one = record("lstm", "variational", 1, end=0.15, recurrent_dropout=u, word_dropout=e)
            one["curves"]["valid_rmse"] = [0.19, value, value + 0.01]
            one["metrics"]["end"] |= {"test_rmse": 0.15, "test_rmse_mc": 0.16 if (u, e) == (0.0, 0.0) else 0.15}
            (tmp_path / "sentiment-grid").mkdir(exist_ok=True)
            (tmp_path / "sentiment-grid" / f"{number}.json").write_text(json.dumps(one))
        return tmp_path

    def sweep(self, tmp_path):
        trials = [
            {"settings": {"model.recurrent_dropout": u, "model.word_dropout": e}, "value": value, "state": "complete"}
            for (u, e), value in VALUES.items()
        ]
        failed = {"settings": {"model.recurrent_dropout": 0.9, "model.word_dropout": 0.9}, "value": 9, "state": "fail"}
        (tmp_path / "sentiment-grid").mkdir()
        record = {"recipe": "sentiment-lstm-variational", "device": "cpu (x)", "trials": [*trials, failed]}
        (tmp_path / "sentiment-grid" / "sweep.json").write_text(json.dumps(record))
        return tmp_path

    @pytest.mark.parametrize("kind", ["runs", "sweep"])
    def test_table(self, tmp_path, kind):
        results = getattr(self, kind)(tmp_path)
        assert report_grid.grid(results)[1] == pytest.approx(VALUES)
        text = report_grid.grid_block(results)
        assert "| lowest validation RMSE | p_E = 0 | p_E = 0.5 |" in text
        assert "| p_U = 0.25 | 0.1600 | **0.1500** |" in text
        last = kind == "runs"
        assert text.count("**") == (4 if last else 2)
        assert ("| p_U = 0.25 | 0.1700 | **0.1600** |" in text) == last, "the last epoch is not the best here"
        assert (
            "at least as good as the standard approximation: 2 of 3 with p_E = 0, 3 of 3 with p_E = 0.5." in text
        ) == last
        assert "seeds of the recipe" not in text, "none recorded"
        for seed, low in ((1, 0.14), (2, 0.143)):
            one = record("lstm", "variational", seed, end=0.15)
            one["curves"]["valid_rmse"] = [0.19, low, 0.15]
            write(results, one)
        text = report_grid.grid_block(results)
        assert "The 6 lowest errors differ by up to 0.0125, those of 2 seeds of the recipe by up to 0.0030." in text
        assert (
            "The 6 last errors differ by up to 0.0125, those of 2 seeds of the recipe by up to 0.0000." in text
        ) == last
        assert ("sentiment-grid-last.png" in text) == last == ("sentiment-grid-last.png" in plots.figures(results))

    def test_picture(self, tmp_path):
        made = plots.figures(self.sweep(tmp_path))
        assert list(made) == ["sentiment-grid.png"]
        assert made["sentiment-grid.png"].startswith(PNG)

    def test_what_is_no_grid(self, tmp_path):
        (tmp_path / "sentiment-grid").mkdir()
        (tmp_path / "sentiment-grid" / "a.json").write_text("{}")
        with pytest.raises(UserError, match=r"a\.json is neither a sweep over"):
            report_grid.grid(tmp_path)


class TestPictures:
    def test_written(self, results, tmp_path):
        paths = plots.write_figures(results, tmp_path / "figures")
        assert [p.name for p in paths] == [
            "sentiment-curves.png",
            "sentiment-intervals.png",
            "sentiment-uncertainty.png",
        ]
        assert all(p.read_bytes().startswith(PNG) for p in paths)

    def test_blocks_show_the_pictures_that_are_written(self, results, tmp_path):
        write(results, record("lstm", "plain", 1, end=0.14, split="chunk"), name="sentiment-lstm-plain-chunk")
        TestGrid().sweep(results)
        shown = re.findall(r"\(figures/([\w.-]+)\)", "".join(block(results) for block in report.BLOCKS.values()))
        assert sorted(shown) == sorted(plots.figures(results))

    def test_one_model_alone(self, tmp_path):
        made = plots.figures(write(tmp_path, record("gru", "plain", 1, end=0.16)))
        assert list(made) == ["sentiment-curves.png", "sentiment-intervals.png"]
