"""Pruned weights that are trained again: what is gone stays zero, what is left learns."""

import copy
import json
import random

import pytest
import torch

import bayesrnn as br
from bayesrnn import pruning
from bayesrnn.errors import UserError
from bayesrnn.recipes import load, override
from bayesrnn.tasks import language
from bayesrnn.tasks.trained import open_run
from bayesrnn.train import checkpoint
from bayesrnn.train.launch import launch
from bayesrnn.train.retrain import Retraining, Schedule, retrain, schedule
from bayesrnn.train.run_folder import RunFolder
from bayesrnn.train.step import Held, Step

CPU = torch.device("cpu")
CUDA = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])]
TINY = ["hidden=8", "batch_size=4", "window=6"]
# Sigmas that are small against the weights, so that two epochs are enough to learn from.
LEARNS = [
    "hidden=8", "layers=1", "batch_size=20", "window=10", "init=0.3", "epochs=2", "prior=normal",
    *(f"{key}=0.05" for key in ("lstm_low", "lstm_high", "other_low", "other_high")),
]  # fmt: skip
CASES = {
    "clipped": ["clip=0.05"],
    "decay and L2": ["clip=null", "weight_decay=1e-2", "l2=1e-2"],
    "adam": ["optimizer=adam", "l2=1e-2"],
    "momentum": ["momentum=0.9", "weight_decay=1e-2"],
}


class Quiet:
    def __init__(self, stop=None):
        self.said, self.lines, self.stop = [], [], stop

    def say(self, text):
        self.said.append(text)

    def step(self, progress):
        pass

    def epoch(self, line, epochs):
        self.lines.append(line)
        if line["epoch"] == self.stop:
            raise InterruptedError


def stepper(folder, overrides, masks=None, *, name="unregularised-medium"):
    """A step of a small model, and the task."""
    recipe = override(load(name), [*TINY, *overrides])
    task = language.Language(recipe, str(folder), CPU)
    torch.manual_seed(0)
    task.attach(task.build(recipe, task.files()).train())
    step = Step(task, recipe.train, graph=False, held=masks and masks(task.model))
    step.lr.fill_(0.5)
    return step, task


def some(model, share=0.7):
    generator = torch.Generator().manual_seed(3)
    return {n: torch.rand(p.shape, generator=generator) < share for n, p in model.named_parameters() if "bias" not in n}


class TestHeldEntries:
    @pytest.mark.parametrize("case", CASES)
    def test_they_stay_to_the_bit_and_the_others_move(self, case, text_folder):
        step, task = stepper(text_folder, CASES[case], some)
        before = {n: p.detach().clone() for n, p in task.model.named_parameters()}
        for _ in range(3):
            step()
        masks = some(task.model)
        for name, p in task.model.named_parameters():
            mask = masks.get(name, torch.zeros_like(p, dtype=torch.bool))
            assert torch.equal(p[mask], before[name][mask])
            assert (p != before[name])[~mask].float().mean() > 0.5

    @pytest.mark.parametrize("fused", [False, True])
    def test_a_step_of_the_others_is_sgd_with_the_norm_of_the_others(self, fused, text_folder):
        clip = 0.05
        step, task = stepper(text_folder, [f"clip={clip}"], some)
        step.fused = fused
        x = task.batch(step.position)
        loss, _, _ = task.objective(x, step.state)
        params = dict(task.model.named_parameters())
        gradients = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
        for name, mask in some(task.model).items():
            gradients[name] = gradients[name].masked_fill(mask, 0)
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients.values()]))
        assert norm > clip
        wanted = {n: p.detach() - 0.5 * gradients[n] * clip / norm for n, p in params.items()}
        step()
        torch.testing.assert_close({n: p.detach() for n, p in params.items()}, wanted, rtol=1e-4, atol=1e-7)
        assert step.read_totals()["gradient_norm"] == pytest.approx(float(norm), rel=1e-5)

    def test_nothing_held_is_the_ordinary_step(self, text_folder):
        ours, _ = stepper(text_folder, [], lambda model: some(model, share=0.0))
        theirs, _ = stepper(text_folder, [])
        for step in (ours, theirs):
            step()
        assert all(torch.equal(a, b) for a, b in zip(ours.params, theirs.params, strict=True))

    def test_a_name_that_the_model_has_not(self, text_folder):
        _, task = stepper(text_folder, [])
        with pytest.raises(ValueError, match="'nothing' is no trained parameter"):
            Held(task.model, list(task.model.parameters()), {"nothing": torch.zeros(1, dtype=torch.bool)})


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Eight words in a ring: the next one follows nine times in ten."""
    folder, source = tmp_path_factory.mktemp("ring"), random.Random(0)
    for split, count in (("train", 12_000), ("valid", 1000), ("test", 200)):
        word, words = 0, []
        for _ in range(count):
            word = (word + 1) % 8 if source.random() < 0.9 else source.randrange(8)
            words.append(f"w{word}")
        (folder / f"{split}.txt").write_text(" ".join(words) + "\n")
    return folder


@pytest.fixture(scope="module")
def runs(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    for name in ("brnn-medium", "brnn-sharpened-medium"):
        launch(name, out=out / name, reporter=Quiet(), data=str(text), overrides=LEARNS, device="cpu")
    return out


def pruned_of(run, fraction=0.8):
    q = copy.deepcopy(pruning.gaussian_of(run.model))
    br.prune(q, fraction)
    return q


def again(folder, out, fraction=0.8, plan=None, told=None, device="cpu", **options):
    run = open_run(folder, torch.device(device))
    plan = plan or Schedule(3, 0.1)
    reporter = told or Quiet()
    return retrain(run, pruned_of(run, fraction), plan, fraction=fraction, out=out, reporter=reporter, **options)


def perplexity(model, text, recipe):
    task = language.Language(recipe, str(text), CPU)
    return language.perplexity(model, task.streams.valid)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["brnn-medium", "brnn-sharpened-medium"])
def test_what_is_gone_stays_zero_and_the_rest_makes_up_for_it(name, device, runs, text, tmp_path):
    run = open_run(runs / name, CPU)
    before = pruned_of(run)
    gone = pruning.removed(before)
    assert sum(int(g.sum()) for g in gone.values()) == round(0.8 * sum(g.numel() for g in gone.values()))
    told = Quiet()
    again(runs / name, tmp_path / "r", told=told, device=device)
    assert ("One step is one CUDA graph." in told.said) is (device == "cuda")
    made = open_run(tmp_path / "r", CPU)
    q = made.model
    assert type(q) is br.BayesByBackprop
    for key, mask in gone.items():
        assert (q.means[key][mask] == 0).all()
        assert (q.posterior.rho[key][mask] == pruning.gone_rho(torch.float32)).all()
        moved = [(a != b)[~mask].float() for a, b in (
            (q.means[key], before.means[key]), (q.posterior.rho[key], before.posterior.rho[key])
        )]  # fmt: skip
        assert not moved[0].numel() or min(m.mean() for m in moved) > 0.9
    assert not torch.equal(q.module.decoder.bias, before.module.decoder.bias)
    with br.draw(q, seed=1):
        drawn = q._drawn()
    assert all(drawn[key][mask].abs().max() < 1e-15 for key, mask in gone.items() if mask.any())
    whole, cut, mended = (perplexity(m, text, made.recipe) for m in (run.model, before, q))
    assert cut > 1.2 * whole
    assert mended - whole < 0.2 * (cut - whole)


def test_the_run_folder_that_it_leaves(runs, tmp_path):
    told = Quiet()
    again(runs / "brnn-medium", tmp_path / "r", told=told, command="bayesrnn prune X")
    record = json.loads((tmp_path / "r" / "record.json").read_text())
    assert record["pruned"]["fraction"] == 0.8
    assert record["command"] == "bayesrnn prune X"
    assert record["settings"]["posterior"]["kind"] == "bayes_by_backprop"
    assert "test_perplexity" not in record["metrics"]  # the test text was not looked at
    assert [line["lr"] for line in told.lines] == pytest.approx([0.1, 0.1 * 30**-0.5, 0.1 / 30])
    task = open_run(tmp_path / "r", CPU).task(None, CPU)
    assert task.evaluate(samples=2)["valid_perplexity"] > 1


class TestNoise:
    """While it trains, what is gone keeps its sigma; in what is written for use it has none."""

    def test_a_weight_that_is_gone_has_mean_zero_and_a_sigma_that_learns(self, runs, tmp_path):
        run = open_run(runs / "brnn-medium", CPU)
        gone = pruning.removed(pruned_of(run))
        again(runs / "brnn-medium", tmp_path / "r")
        last = checkpoint.load(tmp_path / "r" / checkpoint.LAST)[0]
        for key, mask in gone.items():
            assert (last[f"model.module.{key}"][mask] == 0).all()
            rho, before = last[f"model.posterior.rho.{key}"][mask], run.model.posterior.rho[key][mask]
            assert (rho - before).abs().max() < 1
            assert (rho != before).float().mean() > 0.9

    def test_a_draw_and_its_kl_are_the_runs_with_means_of_zero(self, runs, text):
        run = open_run(runs / "brnn-medium", CPU)
        pruned = pruned_of(run)
        task = Retraining(run.recipe, str(text), CPU, whole=run.model, pruned=pruned)
        task.attach(task.build(run.recipe, task.files()))
        wanted = run.model
        with torch.no_grad():
            for key, mask in pruning.removed(pruned).items():
                wanted.means[key][mask] = 0
        terms, drawn = [], []
        for q in (task.model, wanted):
            bound = br.ELBO(q, br.Categorical(), num_data=1000)
            with br.draw(q, seed=1):
                x = task.batch(torch.tensor(0))
                terms.append(bound(q(x[:-1]), x[1:]))
                drawn.append(q._drawn())
        assert all(torch.equal(drawn[0][key], drawn[1][key]) for key in drawn[0])
        assert torch.isfinite(terms[0].kl)
        assert terms[0].loss == terms[1].loss

    def test_the_kl_is_reported_and_is_near_the_runs_own(self, runs, tmp_path):
        told = Quiet()
        again(runs / "brnn-medium", tmp_path / "r", told=told)
        before = json.loads((runs / "brnn-medium" / "record.json").read_text())["curves"]["kl_per_sequence"][-1]
        assert all(line["kl_per_sequence"] == pytest.approx(before, rel=0.2) for line in told.lines)
        record = json.loads((tmp_path / "r" / "record.json").read_text())
        assert record["curves"]["kl_per_sequence"] == [line["kl_per_sequence"] for line in told.lines]

    def test_an_unfinished_run_is_the_pruned_model_too(self, runs, tmp_path):
        with pytest.raises(InterruptedError):
            again(runs / "brnn-medium", tmp_path / "r", told=Quiet(stop=1))
        assert removed_share(tmp_path / "r") == pytest.approx(0.8, abs=1e-3)

    def test_what_a_pruned_run_had_lost_before_stays_lost(self, runs, tmp_path):
        """It has no sigma to keep; the KL of that is a huge constant, and is not reported."""
        again(runs / "brnn-medium", tmp_path / "r")
        first, told = open_run(tmp_path / "r", CPU).model, Quiet()
        again(tmp_path / "r", tmp_path / "s", fraction=0.9, told=told)
        assert removed_share(tmp_path / "s") == pytest.approx(0.9, abs=1e-3)
        assert "kl_per_sequence" not in told.lines[0]
        last = checkpoint.load(tmp_path / "s" / checkpoint.LAST)[0]
        for key, mask in pruning.removed(first).items():
            assert (last[f"model.posterior.rho.{key}"][mask] == pruning.gone_rho(torch.float32)).all()

    def test_nothing_removed_is_training_on(self, runs, tmp_path):
        again(runs / "brnn-medium", tmp_path / "r", fraction=0.0)
        assert removed_share(tmp_path / "r") == 0


def removed_share(folder):
    gone = pruning.removed(open_run(folder, CPU).model).values()
    return sum(int(g.sum()) for g in gone) / sum(g.numel() for g in gone)


def same(ours, theirs):
    (a, _), (b, _) = checkpoint.load(ours), checkpoint.load(theirs)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(("epoch", "best"), [(1, True), (3, True), (3, False)])
def test_stopped_and_gone_on_with_is_bit_identical(epoch, best, runs, tmp_path):
    """Also where it was killed between the checkpoint to go on from and the best weights: those are made again."""
    again(runs / "brnn-medium", tmp_path / "whole")
    with pytest.raises(InterruptedError):
        again(runs / "brnn-medium", tmp_path / "r", told=Quiet(stop=epoch))
    if not best:
        assert json.loads((tmp_path / "r" / "state.json").read_text())["best"]["epoch"] == epoch
        for name in (checkpoint.BEST, checkpoint.BEST_COPY):
            (tmp_path / "r" / name).unlink()
    told = Quiet()
    again(runs / "brnn-medium", tmp_path / "r", told=told)
    assert f"Resumed in epoch {epoch + 1}, after step 0." in told.said
    for name in (checkpoint.BEST, checkpoint.LAST):
        ours, theirs = (checkpoint.load(tmp_path / folder / name)[0] for folder in ("r", "whole"))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_done_is_not_done_again_and_another_one_is_refused(runs, tmp_path):
    first = again(runs / "brnn-medium", tmp_path / "r")
    told = Quiet()
    second = again(runs / "brnn-medium", tmp_path / "r", told=told)
    assert not told.lines
    assert all(torch.equal(first[key], second[key]) for key in first)
    for options in ({"fraction": 0.7}, {"plan": Schedule(2, 0.1)}):
        with pytest.raises(UserError, match=r"retraining of other weights, or with other settings; .* --force"):
            again(runs / "brnn-medium", tmp_path / "r", **options)
    again(runs / "brnn-medium", tmp_path / "r", plan=Schedule(1, 0.1), told=told, force=True)
    assert len(told.lines) == 1


def test_an_unfinished_one_belongs_to_its_own_command(runs, text, tmp_path):
    with pytest.raises(InterruptedError):
        again(runs / "brnn-medium", tmp_path / "r", told=Quiet(stop=1))
    with pytest.raises(UserError, match="begun with other weights: pruned ones are trained on by bayesrnn prune"):
        again(runs / "brnn-medium", tmp_path / "r", fraction=0.7)
    settings = Schedule(3, 0.1).settings()
    with pytest.raises(UserError, match="begun with other weights"):
        launch(
            "brnn-medium", out=tmp_path / "r", reporter=Quiet(), data=str(text), device="cpu", resume=True,
            overrides=[*LEARNS, *settings],
        )  # fmt: skip


def test_a_rate_that_is_too_high_is_said(runs, tmp_path):
    with pytest.raises(UserError, match=r"With 80% removed: The loss .* Here the rate is --retrain-lr"):
        again(runs / "brnn-medium", tmp_path / "r", plan=Schedule(1, 1e30))


def test_messages_name_what_the_command_has(runs, tmp_path):
    """No --out; and after a rate that was too high another one needs --force."""
    with RunFolder(tmp_path / "busy", files=[]), pytest.raises(UserError, match="ends, or prune a copy of the run"):
        again(runs / "brnn-medium", tmp_path / "busy")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file, and a folder is needed; prune a copy of the run"):
        again(runs / "brnn-medium", tmp_path / "file")
    with pytest.raises(UserError, match="Here the rate is --retrain-lr, with --force"):
        again(runs / "brnn-medium", tmp_path / "r", plan=Schedule(1, 1e30))
    with pytest.raises(UserError, match=r"started with train\.lr=1e\+30, not 0\.1; .* or start over with --force\."):
        again(runs / "brnn-medium", tmp_path / "r", plan=Schedule(1, 0.1))
    again(runs / "brnn-medium", tmp_path / "r", plan=Schedule(1, 0.1), force=True)


def test_the_rate_where_none_is_given():
    recipe = override(load("brnn-medium"), ["train.lr=0.5", "train.average_from=3", "train.patience=2"])
    assert schedule(recipe, 4) == Schedule(4, 0.15)
    made = override(recipe, schedule(recipe, 1, 0.3).settings()).train
    assert (made.lr, made.epochs, made.average_from, made.patience) == (0.3, 1, None, None)
