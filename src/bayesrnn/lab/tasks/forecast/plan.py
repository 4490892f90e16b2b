"""A run's forecaster before and after its networks are trained.

The run folder keeps a description (plan.json) and the series (series.safetensors); a checkpoint holds networks, bases
and all other numbers. These files may come from anywhere.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, storage
from bayesrnn.forecasting.fitting import Prepared, finish, likelihoods_of, member_of, prepare
from bayesrnn.forecasting.grids import Calibration
from bayesrnn.forecasting.integrity import check_fit, check_sizes
from bayesrnn.forecasting.linear import LAGS, Linear, features
from bayesrnn.forecasting.model import Model
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.selection import Base, apart, folds
from bayesrnn.forecasting.training import NETWORK, Settings
from bayesrnn.forecasting.windows import Windows, origins
from bayesrnn.lab.console.output import Report
from bayesrnn.lab.reading import parse_json
from bayesrnn.lab.tasks.base import Files, Say, posterior
from bayesrnn.lab.tasks.forecast.source import Source

if TYPE_CHECKING:
    from bayesrnn.lab.recipes.schema import Recipe

Array = np.ndarray
PLAN, SERIES = "plan.json", "series.safetensors"
_WINDOWS = 3_000  # of a walk through the test part
_LEAST = 4  # rows of a series before the test part


@dataclass(frozen=True)
class Plan:
    """What a run is besides its weights: a description as of `Forecaster.save`, and the series of its panel.

    ``arrays`` are the first values of what a checkpoint holds; None: the plan is that of a run. ``notes`` say how bases
    were chosen.
    """

    about: dict[str, Any]
    series: dict[str, Array]
    arrays: dict[str, Array] | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def panel(self) -> Panel:
        """All rows."""
        with storage.damaged(f"{PLAN} of this run"):
            return storage.panel_from(self.about, self.series)

    @cached_property
    def ends(self) -> Array:
        """Rows (S,) of each series before the test part."""
        with storage.damaged(f"{PLAN} of this run"):
            last = np.array([int(self.about["trained"][name]) for name in self.panel.ids], np.int64)
            return np.clip((last - self.panel.first) // self.panel.clock.every + 1, 1, self.panel.lengths)

    @classmethod
    def of(cls, made: Forecaster, panel: Panel, test: float, report: Report) -> "Plan":
        """Hold out the test part, choose bases on the rest, and lay out the networks."""
        s, notes = made.settings, list[str]()
        ends = panel.lengths - held_out(panel, made.horizon, test)
        train = panel.until(ends)
        prepared = prepare(
            train, made.shapes(train), likelihood=s["likelihood"], calibrate=s["calibrate"], holidays=s["holidays"],
            seconds=math.inf, seed=0, say=notes.append, progress=lambda text, share: report(round(100 * share), 100),
        )  # fmt: skip
        members, fold, windows = [], prepared.fold, 0
        if fold is not None:
            names, network = likelihoods_of(train, s["likelihood"]), Settings(**{key: s[key] for key in NETWORK})
            for k in range(s["members"]):
                member = member_of(prepared, names, replace(network, hidden=2), k)  # only the head is used here
                member.settings = replace(member.settings, hidden=network.hidden)
                base, cuts = prepared.before[member.base], prepared.cuts[member.base]
                windows = member.sampler(base, cuts, fold, np.random.default_rng(k)).total
                members.append(member)
        weights = np.append(prepared.model.weights, np.zeros(len(members)))
        made.adopt(replace(prepared.model, members=members, weights=weights), train)
        made.panel = panel
        arrays = storage.model_arrays(made.fitted)
        for k, base in enumerate(prepared.before):
            arrays |= {f"before{k}_weights": base.linear.weights, f"before{k}_root": base.linear.root}
        about = {**storage.described(made, arrays), "windows": windows}
        return cls(about, storage.panel_arrays(panel), arrays, tuple(notes))

    def files(self) -> dict[str, bytes]:
        from safetensors.torch import save

        text = json.dumps(self.about, indent=1) + "\n"
        return {PLAN: text.encode(), SERIES: save(storage.as_tensors(self.series))}

    @classmethod
    def read(cls, files: Files) -> "Plan":
        """What `files` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            series = {name: value.numpy() for name, value in load(files[SERIES]).items()}
        except (SafetensorError, KeyError, TypeError, ValueError):
            raise UserError(f"{SERIES} of this run is missing or damaged; restore it, or train again.") from None
        return cls(described(files), series)

    def opened(self, module: nn.Module) -> tuple[Forecaster, Prepared]:
        """The forecaster with the networks and numbers of a module, not weighed yet; and what they learn from."""
        assert isinstance(module, storage.Parts)
        with storage.damaged(f"{PLAN} of this run"):
            arrays = module.arrays
            check_sizes(self.about, sum(t.nbytes for t in (*module.state_dict().values(), *self.series.values())))
            made = storage.assembled(Forecaster, self.about, module, {**self.series, **arrays})
            check_fit(made)
            model, train = made.fitted, self.panel.until(self.ends)
            before = []
            for k, base in enumerate(model.bases):
                if isinstance(base, Base) and f"before{k}_weights" in arrays:
                    weights, root = arrays[f"before{k}_weights"], arrays[f"before{k}_root"]
                    before.append(replace(base, linear=replace(base.linear, weights=weights, root=root), _kept={}))
            fold = folds(train, model.shape)[-1] if before else None
            past = list(model.bases[len(before) :])
            return made, Prepared(train, model, made.settings["holidays"], before, past, fold)


def described(files: Files) -> dict[str, Any]:
    """The content of plan.json."""
    if PLAN not in files:
        raise UserError("This forecast run is of an earlier version of bayesrnn, which had another model; train again.")
    about = parse_json(files[PLAN], where=PLAN)
    if not isinstance(about, dict):
        raise UserError(f"{PLAN} of this run is damaged; restore it, or train again.")
    return about


def module_of(recipe: "Recipe", files: Files) -> nn.Module:
    """Networks with their initial weights, and room for all other numbers."""
    about = described(files)
    plain = [{**m, "settings": {**m["settings"], "posterior": "variational"}} for m in about["members"]]
    module = storage.empty_parts({**about, "members": plain})
    made = [posterior(network, recipe.posterior, recurrent="rnn.*") for network in module.networks]
    module.networks = nn.ModuleList(made)
    if not made:  # the engine trains at least one number
        module.nothing = nn.Parameter(torch.zeros(1))
    return module


def forecaster_of(recipe: "Recipe", source: Source) -> Forecaster:
    """An unfitted forecaster with the settings of a recipe."""
    model, data, kind = recipe.model, recipe.data, recipe.posterior.kind
    if kind == "sharpened":
        raise UserError("posterior.kind is sharpened, which forecasts do not have; use none or bayes_by_backprop.")
    if kind != "none" and (model.dropout or model.components > 1):
        key, least = ("dropout", 0) if model.dropout else ("components", 1)
        raise UserError(f"model.{key} is for networks without a posterior over weights; set it to {least}.")
    if data.covariates not in ("", "all", "none") and not data.target and source.columns.target not in source.table:
        raise UserError("data.covariates needs data.target, the column that is forecast.")
    named = {key: _names(getattr(data, key)) for key in ("covariates", "future")}
    with source.naming():
        return Forecaster(
            data.horizon, int(data.freq) if data.freq.isdigit() else data.freq or None,
            posterior="bbb" if kind != "none" else "variational" if model.dropout else "none",
            past=None if data.covariates == "all" else named["covariates"], future=named["future"],
            season=data.season or None, context=data.window or None, members=model.components,
            holidays=data.holidays or None, resample=data.resample or None, samples=recipe.evaluate.samples,
            timezone=data.timezone or None,
            time_col=source.columns.time, target_col=source.columns.target,
            **{key: getattr(data, key) for key in ("scaling", "transform")},
            **{key: getattr(model, key) for key in ("cell", "hidden", "layers", "dropout", "likelihood")},
        )  # fmt: skip


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]


def held_out(panel: Panel, horizon: int, share: float) -> int:
    """Rows of the test part: the same number of every series, so that all are walked through together."""
    shortest = int(panel.lengths.argmin())
    length = int(panel.lengths[shortest])
    rows = max(horizon, round(share * length))
    if length - rows < _LEAST:
        raise UserError(
            f"Series {panel.ids[shortest]!r} has {length} rows, too few: the test part takes {rows} (a horizon of "
            f"{horizon}), and {_LEAST} must be left; use a smaller data.horizon, or leave the series out."
        )
    return rows


def cutoffs(panel: Panel, horizon: int, share: float) -> tuple[Array, int, int]:
    """First rows (S,) that are forecast in the test part, how many windows follow, and how far apart they are."""
    possible = held_out(panel, horizon, share) - horizon + 1
    step = math.ceil(possible * len(panel) / _WINDOWS)
    count = (possible - 1) // step + 1
    return panel.lengths - horizon - (count - 1) * step, count, step


def finished(made: Forecaster, prepared: Prepared, say: Say) -> Forecaster:
    """Weigh the networks; the panel ends before the test part."""
    s = made.settings
    model = finish(
        prepared, made.fitted.members, likelihood=s["likelihood"], calibrate=s["calibrate"], seed=s["seed"], say=say
    )
    return made.adopt(model, prepared.panel)


def naive(made: Forecaster, prepared: Prepared) -> Mapping[str, Model]:
    """The last value, and the value a season before, with the distribution of their errors on the training rows."""
    shape, panel, found = made.fitted.shape, prepared.panel, {}
    windows = Windows(panel, replace(shape, log="none"), holidays=prepared.holidays)
    low = np.full(len(panel), min(shape.least, max(int(panel.lengths.min()) - shape.horizon, 1)))
    chosen = origins(panel, shape, low, panel.lengths - shape.horizon, _WINDOWS, np.random.default_rng(0))
    batch = windows.batch(*chosen, LAGS)
    size = features(batch).shape[1]
    names = {"naive": "last"}
    if shape.season > 1 and shape.season < shape.context:
        names["seasonal_naive"] = f"season {shape.season}"
    for name, anchor in names.items():
        linear = Linear(anchor, np.inf, np.zeros((size, shape.horizon)), np.zeros((size, 1)))
        base = Base(windows.shape, linear, "season", Calibration.identity(shape.horizon))
        z = (batch.target - base.point(windows, batch)) / base.unit(windows, batch)[:, None]
        base = replace(base, calibration=Calibration.fit(z, apart([batch], shape)))
        found[name] = replace(made.fitted, bases=[base], members=[], weights=np.ones(1),
                              calibration=Calibration.identity(shape.horizon))  # fmt: skip
    return found
