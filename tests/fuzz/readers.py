"""Every reader of files or settings that may come from anywhere: how to call it, and inputs to call it with.

A reader is a function of one input that returns, or raises `UserError`. Anything else is a finding.
"""

from __future__ import annotations

import fuzz_data as data
import fuzz_requests as requests
import fuzz_runs as runs
import fuzz_saved as saved
from fuzz_inputs import Reader

READERS = {
    "recipe": Reader(runs.recipe_inputs, runs.read_recipe, "a recipe, as YAML"),
    "overrides": Reader(runs.override_inputs, runs.read_overrides, "key=value of the command line"),
    "checkpoint": Reader(
        runs.checkpoint_inputs, runs.read_checkpoint, "a checkpoint: safetensors with JSON in its header"
    ),
    "config": Reader(runs.config_inputs, runs.read_config, "config.json of a run folder, then the whole run"),
    "vocabulary": Reader(
        runs.vocabulary_inputs, runs.read_vocabulary, "vocabulary.txt of a run folder, then the whole run"
    ),
    "saved": Reader(
        saved.saved_inputs, saved.read_saved, "a saved model: config.json, model.safetensors and vocabulary.txt"
    ),
    "forecaster": Reader(
        saved.forecaster_inputs, saved.read_forecaster, "a saved forecaster: forecaster.json and model.safetensors"
    ),
    "text": Reader(data.text_inputs, data.read_text, "train, valid and test text"),
    "record": Reader(runs.record_inputs, runs.read_record, "records and metrics, then the report's page of them"),
    "forecast": Reader(
        runs.forecast_inputs, runs.read_forecast, "plan.json and series.safetensors of a run folder, then a forecast"
    ),
    "series": Reader(data.series_inputs, data.read_series, "a series, as CSV"),
    "digits": Reader(data.digits_inputs, data.read_digits, "idx files, gzipped or not"),
    "reviews": Reader(data.reviews_inputs, data.read_reviews, "the archive of reviews"),
    "captions": Reader(data.captions_inputs, data.read_captions, "caption files of Flickr8k and COCO"),
    "image": Reader(data.image_inputs, data.read_image, "an image, of any format that is read"),
    "features": Reader(data.features_inputs, data.read_features, "features of images: .npy, and the names beside it"),
    "request": Reader(requests.request_inputs, requests.read_request, "requests to the page of `bayesrnn explore`"),
    "tokens": Reader(data.tokens_inputs, data.read_tokens, "token files of a large text"),
}
