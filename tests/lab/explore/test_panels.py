"""The panels of digits, reviews, captions and forecasts: their answers are those of the tasks."""

import base64

import numpy as np
import pandas as pd
import pytest
import torch

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster
from bayesrnn.lab.explore.panel import Options, risk_curve
from bayesrnn.lab.tasks.captioning.description import describe
from bayesrnn.lab.tasks.digits.panel import centred
from bayesrnn.uncertainty import risk_coverage


class TestDigits:
    def test_the_average_is_that_of_predict(self, digits, client_of):
        client = client_of([digits])
        sample = client.ask("sample", {"index": 3})
        assert sample["label"] == 3
        found = client.ask("classify", {"pixels": sample["pixels"], "draws": 8})
        image = centred(torch.tensor(sample["pixels"], dtype=torch.uint8).view(1, 28, 28))
        scale = client.runs[0].recipe.data.scale
        p = br.predict(client.runs[0].model, image.unsqueeze(1).float() / scale, samples=8, seed=1, batch_dim=0)
        assert found["probabilities"] == pytest.approx(p.mean[0].tolist(), rel=1e-4)
        assert np.mean(found["draws"], 0) == pytest.approx(found["probabilities"], rel=1e-4)
        assert found["mutual_information"] == pytest.approx(float(p.mutual_information), rel=1e-3, abs=1e-7)

    def test_an_image_is_moved_to_the_middle(self):
        image = torch.zeros(2, 28, 28, dtype=torch.uint8)
        image[0, 2:6, 1:5] = 200
        moved = centred(image)
        rows, columns = moved[0].nonzero().double().mean(0).tolist()
        assert rows == pytest.approx(13.5, abs=0.5)
        assert columns == pytest.approx(13.5, abs=0.5)
        assert int(moved.sum()) == int(image.sum())

    def test_the_risk_is_that_of_the_validation_images(self, digits, client_of):
        client = client_of([digits])
        curve = client.ask("risk")["curve"]
        assert curve["count"] == 40
        assert curve["coverage"][-1] == 1
        assert curve["threshold"] == sorted(curve["threshold"])
        score = client.ask("prune", {"share": 0.0}, panel="weights")
        assert score["label"] == "validation error in percent"
        assert 0 <= score["before"] <= 100

    def test_only_images_are_classified(self, digits, client_of):
        client = client_of([digits])
        for wrong in ([0] * 783, [256] * 784, [0.5] * 784, [-1] * 784, "0" * 784):
            assert client.post("/ask/0/task/classify", json={"pixels": wrong}).status_code == 422


def test_the_risk_curve_is_that_of_the_library():
    uncertainty, losses = torch.rand(1000), torch.rand(1000)
    found = risk_curve(uncertainty, losses, root=True)
    exact = risk_coverage(uncertainty, losses)
    assert len(found["risk"]) == 200
    assert found["risk"][-1] == pytest.approx(float(losses.double().mean().sqrt()))
    at = round(1000 * found["coverage"][50]) - 1
    assert found["risk"][50] == pytest.approx(float(exact.risk[at].sqrt()))
    assert found["threshold"][50] == pytest.approx(float(uncertainty.sort().values[at]))


class TestSentiment:
    def test_a_rating_is_that_of_the_model(self, sentiment, client_of):
        client = client_of([sentiment])
        found = client.ask("rate", {"text": "Good, good unheard-of bad!", "draws": 6})
        assert found["unknown"] == 3  # the comma, the word and the exclamation mark
        assert len(found["ratings"]) == 6
        assert found["mean"] == pytest.approx(np.mean(found["ratings"]), rel=1e-5)
        assert found["epistemic"] == pytest.approx(np.std(found["ratings"]), rel=1e-4)
        assert found["low"] < found["mean"] < found["high"]
        width = found["high"] - found["low"]
        assert width >= 2 * 1.64 * found["noise"]
        assert client.ask("rate", {"text": "", "draws": 2})["words"] == 0
        long = client.ask("rate", {"text": "good " * 100, "draws": 2})
        assert (long["read"], long["words"]) == (22, 100)

    def test_the_risk_is_in_rating_units(self, sentiment, client_of):
        client = client_of([sentiment])
        curve = client.ask("risk")["curve"]
        assert 0 < curve["risk"][-1] < 1
        assert client.about()["runs"][0]["panels"]["weights"]["score"] == "validation error (RMSE)"


class TestCaptioning:
    def test_images_are_chosen_by_number(self, captioning, client_of):
        client = client_of([captioning])
        images = client.ask("images")["images"]
        assert sorted(image["name"] for image in images) == [f"test{k}.png" for k in range(6)]
        assert [image["picture"] for image in images] == [True] * 2 + [False] * 4
        jpeg = base64.b64decode(client.ask("picture", {"index": 0})["jpeg"])
        assert jpeg.startswith(b"\xff\xd8")
        assert client.ask("picture", {"index": 5}) == {"jpeg": None}
        assert "only 6 images" in client.ask("picture", {"index": 6})["error"]

    def test_a_caption_is_that_of_describe(self, captioning, client_of):
        client = client_of([captioning])
        name = client.ask("images")["images"][1]["name"]
        found = client.ask("caption", {"index": 1, "draws": 5})
        split = client.runs[0].task(None, torch.device("cpu")).splits["test"]
        row = split.features[split.names.index(name)][None]
        (one,) = describe(client.runs[0], [name], row, samples=5, draws=4)
        assert " ".join(word["word"] for word in found["words"]) == one.caption
        assert found["words"][0]["entropy"] == pytest.approx(one.words[0].entropy, rel=1e-4)
        assert found["said"] == one.draws

    def test_without_data(self, captioning, client_of, tmp_path):
        client = client_of([captioning], Options(data=str(tmp_path / "gone")))
        assert "is not a folder" in client.ask("images")["error"]


class TestForecast:
    def test_a_forecast_at_the_end_is_that_of_the_task(self, forecast, client_of):
        client = client_of([forecast])
        about = client.about()["runs"][0]["panels"]["task"]
        assert about["names"] == ["level"]
        about = about["shown"]
        assert [(covariate["name"], covariate["ahead"]) for covariate in about["covariates"]] == [("heat", False)]
        assert about["labels"][-1] == "2018-07-01"
        last = about["origins"][1]
        found = client.ask("fan", {"origin": last, "level": 0.9})
        task = client.runs[0].task(None, torch.device("cpu"))
        ahead = task.finished().update(task.whole).predict(level=[90])
        for key, column in {"mean": "mean", "low": "lo-90", "high": "hi-90", "epistemic_std": "epistemic_std"}.items():
            assert found[key] == pytest.approx(ahead[column].tolist(), rel=1e-5), key
        assert np.shape(found["paths"]) == (12, 3)

    def test_an_earlier_origin_does_not_see_what_came_later(self, forecast, client_of):
        client = client_of([forecast])
        last = client.about()["runs"][0]["panels"]["task"]["shown"]["origins"][1]
        before = client.ask("fan", {"origin": last - 5})
        refused = client.ask("fan", {"origin": last - 5, "edits": [{"step": last, "column": 1, "value": 9.0}]})
        assert "after the origin only if it is known ahead" in refused["error"]
        changed = client.ask("fan", {"origin": last - 5, "edits": [{"step": last - 5, "column": 1, "value": 9.0}]})
        assert changed["mean"] != before["mean"]
        assert client.ask("fan", {"origin": last - 5})["mean"] == before["mean"]
        assert client.ask("fan", {"origin": 3})["error"] == "Forecasts can be made from 1998-05-01 to 2018-04-01."
        assert client.ask("fan", {"origin": last, "series": 1})["error"] == "There is no such series."

    def test_walking_forward_is_that_of_the_test_part(self, forecast, client_of):
        client = client_of([forecast])
        found = client.ask("walk")
        task = client.runs[0].task(None, torch.device("cpu"))
        measured = task.evaluate(level=0.95)
        assert np.mean(found["crps"]) == pytest.approx(measured["test_crps"], rel=1e-6)
        assert found["coverage"][1]["level"] == 95
        assert np.mean(found["coverage"][1]["shares"]) == pytest.approx(measured["test_coverage"], rel=1e-6)
        assert sum(found["pit"]) == pytest.approx(1)
        assert [worst["name"] for worst in found["worst"]] == ["level"]
        assert len(found["times"]) == len(found["epistemic"]) > 10

    def test_pruning_is_scored(self, forecast, client_of):
        found = client_of([forecast]).ask("prune", {"share": 0.9}, panel="weights")
        assert found["before"] > 0
        assert found["after"] != found["before"]


class TestSavedForecaster:
    def test_a_forecast_at_the_end_is_that_of_the_forecaster(self, forecaster, client_of):
        client = client_of([forecaster])
        about = client.about()["runs"][0]
        assert about["name"] == "Forecasts of north, south"
        assert list(about["panels"]) == ["task"]
        shown = client.ask("series", {"series": 1})["shown"]
        assert [(c["name"], c["ahead"], len(c["values"])) for c in shown["covariates"]] == [
            ("heat", False, 150), ("price", True, 156)
        ]  # fmt: skip
        made = Forecaster.load(forecaster)
        price = shown["covariates"][1]["values"][-6:]
        future = pd.DataFrame({"unique_id": "south", "ds": pd.to_datetime(shown["labels"][-6:]), "price": price})
        found = client.ask("fan", {"series": 1, "origin": shown["origins"][1], "level": 0.8})
        expected = made.predict(made.history("south"), level=[80], future=future)
        for key, column in (("mean", "mean"), ("low", "lo-80"), ("high", "hi-80"), ("epistemic_std", "epistemic_std")):
            np.testing.assert_allclose(found[key], expected[column], rtol=1e-4)
        assert np.shape(found["paths"]) == (12, 6)

    def test_columns_known_ahead_can_be_changed_after_the_origin(self, forecaster, client_of):
        client = client_of([forecaster])
        last = client.about()["runs"][0]["panels"]["task"]["shown"]["origins"][1]
        for origin in (last, last - 20):
            before = client.ask("fan", {"origin": origin})
            edit = {"step": origin + 2, "column": 2, "value": 9.0}
            changed = client.ask("fan", {"origin": origin, "edits": [edit]})
            moved = np.array(changed["mean"]) - np.array(before["mean"])
            assert abs(moved[1]) > 5 * abs(moved[0])
            assert client.ask("fan", {"origin": origin})["mean"] == before["mean"]
        refused = client.ask("fan", {"origin": last, "edits": [{"step": last + 2, "column": 1, "value": 9.0}]})
        assert "after the origin only if it is known ahead" in refused["error"]
        refused = client.ask("fan", {"origin": last, "edits": [{"step": last + 7, "column": 2, "value": 9.0}]})
        assert "error" in refused
        assert client.ask("series", {"series": 2})["error"] == "There is no such series."

    def test_an_earlier_origin_does_not_see_later_values(self, forecaster, client_of, tmp_path):
        """Nor does one whose later rows are gone."""
        made = Forecaster.load(forecaster)
        history = made.history("north")
        origin = len(history) - 30
        found = client_of([forecaster]).ask("fan", {"origin": origin, "level": 0.9})
        later = history.iloc[origin + 1 :][["unique_id", "ds", "price"]]
        expected = made.predict(history.iloc[: origin + 1], level=[90], future=later)
        np.testing.assert_allclose(found["high"], expected["hi-90"], rtol=1e-9)

    def test_walking_forward(self, forecaster, client_of):
        found = client_of([forecaster]).ask("walk")
        assert found["rows"] == 2 * 5 * 6
        assert len(found["crps"]) == 6
        assert {worst["name"] for worst in found["worst"]} == {"north", "south"}
        assert sum(found["pit"]) == pytest.approx(1)

    @pytest.mark.parametrize(
        "body",
        [
            {"origin": -1}, {"origin": 10**9}, {"origin": 140, "series": -1}, {"origin": 140, "series": 999},
            {"origin": 140, "level": 1.0}, {"origin": 140, "draws": 10**6}, {"origin": 140, "file": "/etc/passwd"},
            {"origin": "140"}, {"origin": 140, "edits": [{"step": 140, "column": 3, "value": 1.0}]},
            {"origin": 140, "edits": [{"step": 140, "column": 1, "value": 1.0}] * 201}, {"origin": True}, {},
        ],
    )  # fmt: skip
    def test_questions_out_of_range_are_refused(self, forecaster, client_of, body):
        client = client_of([forecaster])
        answer = client.post("/ask/0/task/fan", json=body)
        assert answer.status_code == 422 or "error" in answer.text
        assert "mean" not in answer.text
        huge = {"origin": 140, "edits": [{"step": 141, "column": 2, "value": 1e12}]}
        assert len(client.ask("fan", huge)["mean"]) == 6

    def test_a_forecaster_and_a_run_are_not_compared(self, forecaster, forecast, client_of):
        with pytest.raises(UserError, match="Only runs of one task can be compared"):
            client_of([forecaster, forecast])
