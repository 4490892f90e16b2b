"""Weights removed by steps while the rest is trained: what is gone stays zero, what is left learns."""

import copy
import json
import random
from contextlib import nullcontext

import pytest
import torch

import bayesrnn as br
from bayesrnn import pruning
from bayesrnn.errors import UserError
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.folder import RunFolder
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.tasks.language.retraining import Retraining, Schedule, retrain, schedule

CPU = torch.device("cpu")
CUDA = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])]
TINY = ["hidden=8", "batch_size=4", "window=6"]
# Sigmas that are small against the weights, so that two epochs are enough to learn from.
LEARNS = [
    "hidden=8", "layers=1", "batch_size=20", "window=10", "init=0.3", "epochs=2", "prior=normal", "save_every=20",
    *(f"{key}=0.05" for key in ("lstm_low", "lstm_high", "other_low", "other_high")),
]  # fmt: skip
CASES = {
    "clipped": ["clip=0.05"],
    "decay and L2": ["clip=null", "weight_decay=1e-2", "l2=1e-2"],
    "adam": ["optimizer=adam", "l2=1e-2"],
    "momentum": ["momentum=0.9", "weight_decay=1e-2"],
}


class Quiet:
    """Stops the run after an epoch, or within one, after its last step and before its checkpoint."""

    def __init__(self, stop=None, within=None):
        self.said, self.lines, self.stop, self.within = [], [], stop, within

    def say(self, text):
        self.said.append(text)

    def step(self, progress):
        if progress.epoch == self.within and progress.step == progress.steps:
            raise InterruptedError

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
    if masks is not None:
        task.masks = masks(task.model)
        with torch.no_grad():
            for name, mask in task.masks.items():
                task.model.get_parameter(name).mul_(mask)
    step = Step(task, recipe.train, graph=False)
    step.lr.fill_(0.5)
    return step, task


def some(model, share=0.7):
    """0 for this share of the weights."""
    generator = torch.Generator().manual_seed(3)
    weights = {n: p for n, p in model.named_parameters() if "bias" not in n}
    return {n: (torch.rand(p.shape, generator=generator) >= share).float() for n, p in weights.items()}


class TestMasks:
    @pytest.mark.parametrize("case", CASES)
    def test_masked_entries_stay_zero_and_the_others_move(self, case, text_folder):
        step, task = stepper(text_folder, CASES[case], some)
        before = {n: p.detach().clone() for n, p in task.model.named_parameters()}
        for _ in range(3):
            step()
        masks = some(task.model)
        for name, p in task.model.named_parameters():
            free = masks.get(name, torch.ones_like(p)) > 0
            assert not p[~free].any()
            assert (p != before[name])[free].float().mean() > 0.25  # tiny gradients are lost in rounding

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
            gradients[name] = gradients[name] * mask
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients.values()]))
        assert norm > clip
        wanted = {n: p.detach() - 0.5 * gradients[n] * clip / norm for n, p in params.items()}
        step()
        torch.testing.assert_close({n: p.detach() for n, p in params.items()}, wanted, rtol=1e-4, atol=1e-7)
        assert step.read_totals()["gradient_norm"] == pytest.approx(float(norm), rel=1e-5)

    def test_nothing_masked_is_the_ordinary_step(self, text_folder):
        ours, _ = stepper(text_folder, [], lambda model: some(model, share=0.0))
        theirs, _ = stepper(text_folder, [])
        for step in (ours, theirs):
            step()
        assert all(torch.equal(a, b) for a, b in zip(ours.params, theirs.params, strict=True))

    @pytest.mark.parametrize("case", CASES)
    def test_other_entries_are_masked_from_some_step_on(self, case, text_folder):
        """Moments of their earlier gradients do not move them."""
        step, task = stepper(text_folder, CASES[case], lambda model: some(model, share=0.3))
        for _ in range(2):
            step()
        later = some(task.model, share=0.5)
        with torch.no_grad():
            for name, mask in later.items():
                task.masks[name].copy_(mask)  # in place: a CUDA graph reads these tensors
                task.model.get_parameter(name).mul_(mask)
        for _ in range(3):
            step()
        for name, mask in later.items():
            p = task.model.get_parameter(name)
            assert not p[mask == 0].any()
            assert p[mask > 0].all()


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
    plan, reporter = plan or Schedule(4, 0.1), told or Quiet()
    return retrain(run, plan, fraction=fraction, out=out, reporter=reporter, **options)


def perplexity(model, text, recipe):
    task = language.Language(recipe, str(text), CPU)
    return language.perplexity(model, task.streams.valid)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["brnn-medium", "brnn-sharpened-medium"])
def test_what_is_gone_stays_zero_and_the_rest_makes_up_for_it(name, device, runs, text, tmp_path):
    """On CUDA in one graph, while what is held changes between the epochs."""
    run = open_run(runs / name, CPU)
    before = pruning.gaussian_of(run.model)
    told = Quiet()
    again(runs / name, tmp_path / "r", told=told, device=device)
    assert ("One step is one CUDA graph." in told.said) is (device == "cuda")
    made = open_run(tmp_path / "r", CPU)
    q = made.model
    assert type(q) is br.BayesByBackprop
    gone = pruning.removed(q)
    total = sum(g.numel() for g in gone.values())
    assert sum(int(g.sum()) for g in gone.values()) == round(0.8 * total)
    assert [line["removed"] for line in told.lines] == [round(share * total) / total for share in (0.7, 0.8, 0.8, 0.8)]
    for key, mask in gone.items():
        assert torch.equal(q.means[key] == 0, mask)
        rho, rho_before = q.posterior.rho[key], before.posterior.rho[key]
        assert torch.equal(rho, rho_before.masked_fill(mask, pruning.gone_rho(torch.float32)))
        moved = (q.means[key] != before.means[key])[~mask]
        assert not moved.numel() or moved.float().mean() > 0.9
    assert not torch.equal(q.module.decoder.bias, before.module.decoder.bias)
    with br.draw(q, seed=1):
        drawn = q._drawn()
    assert all(drawn[key][mask].abs().max() < 1e-15 for key, mask in gone.items() if mask.any())
    whole, cut, mended = (perplexity(m, text, made.recipe) for m in (run.model, pruned_of(run), q))
    assert cut > 1.2 * whole
    assert mended - whole < 0.2 * (cut - whole)


def test_the_run_folder_that_it_leaves(runs, tmp_path):
    told = Quiet()
    again(runs / "brnn-medium", tmp_path / "r", told=told, command="bayesrnn prune X")
    record = json.loads((tmp_path / "r" / "record.json").read_text())
    assert [record["pruned"][key] for key in ("fraction", "steps", "sigma")] == [0.8, 2, 0.5]
    assert record["command"] == "bayesrnn prune X"
    assert record["settings"]["posterior"]["kind"] == "bayes_by_backprop"
    assert "test_perplexity" not in record["metrics"]  # the test text was not looked at
    assert [line["lr"] for line in told.lines] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert (
        record["curves"]["removed"] == [line["removed"] for line in lines] == [line["removed"] for line in told.lines]
    )
    task = open_run(tmp_path / "r", CPU).task(None, CPU)
    assert task.evaluate(samples=2)["valid_perplexity"] > 1


class TestSteps:
    def test_the_shares_of_a_schedule(self):
        plan = Schedule(12, 0.1)
        shares = [plan.share(epoch, 0.8) for epoch in range(1, 13)]
        assert shares == pytest.approx([0.8 * (1 - (1 - min(e, 6) / 6) ** 3) for e in range(1, 13)])
        assert shares[5:] == [0.8] * 7
        assert [Schedule(n, 1).steps for n in (1, 2, 3, 4, 30)] == [1, 1, 1, 2, 15]
        assert [Schedule(n, 1).share(1, 0.8) for n in (1, 2, 3)] == [0.8] * 3

    def test_those_of_lowest_ratio_go_and_those_that_are_gone_stay_gone(self, runs, text):
        run = open_run(runs / "brnn-medium", CPU)
        task = Retraining(run.recipe, str(text), CPU, whole=run.model, plan=Schedule(6, 0.1), fraction=0.8)
        task.attach(task.build(run.recipe, task.files()))
        q, gone = task.model, {}
        for epoch in (1, 2, 3, 4):
            ratios = torch.cat([ratio.flatten() for ratio in br.signal_to_noise(q).values()])
            task.start_epoch(epoch)
            now = torch.cat([mean.detach().flatten() == 0 for mean in q.means.values()])
            share = Schedule(6, 0.1).share(epoch, 0.8)
            assert now.sum() == round(share * now.numel())
            assert task.validate()["removed"] == pytest.approx(share, abs=1e-3)
            assert ratios[now].max() <= ratios[~now].min()
            assert all(now[before].all() for before in gone.values())
            gone[epoch] = now
            with torch.no_grad():  # as training would, what is left moves
                for mean in q.means.values():
                    mean.mul_(torch.rand_like(mean))
        assert torch.equal(gone[3], gone[4])

    @pytest.mark.parametrize("epochs", [1, 2])
    def test_few_epochs_begin_with_all_of_it(self, epochs, runs, tmp_path):
        told = Quiet()
        again(runs / "brnn-medium", tmp_path / "r", plan=Schedule(epochs, 0.1), told=told)
        assert [line["lr"] for line in told.lines] == pytest.approx([0.1, 0.001][:epochs])
        assert [line["removed"] for line in told.lines] == pytest.approx([0.8] * epochs, abs=1e-3)
        assert removed_share(tmp_path / "r") == pytest.approx(0.8, abs=1e-3)

    def test_the_best_epoch_has_all_of_it_gone(self, runs, tmp_path):
        """Though an earlier one was better."""
        told = Quiet()
        again(runs / "brnn-medium", tmp_path / "r", fraction=0.9, plan=Schedule(6, 1e-6), told=told)
        figures = [line["valid_perplexity"] for line in told.lines]
        assert min(figures) == figures[0]
        metrics = json.loads((tmp_path / "r" / "record.json").read_text())["metrics"]
        assert metrics["best_epoch"] >= 3
        assert metrics["valid_perplexity"] == min(figures[2:])
        assert metrics["valid_streams"] == told.lines[0]["valid_streams"]  # it is not of one stream, as others are
        assert removed_share(tmp_path / "r") == pytest.approx(0.9, abs=1e-3)


class TestNoise:
    """While it trains what is gone keeps half of its sigma, the rest all; what is written has none of the former."""

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("name", ["brnn-medium", "brnn-sharpened-medium"])
    @pytest.mark.parametrize("fraction", [0.0, 0.8])
    def test_sigmas_are_held_to_the_bit_and_means_of_what_is_gone_zero(self, fraction, name, device, runs, tmp_path):
        """From the moment when a weight goes, as all four epochs end; of the others, as the run had it."""
        before = pruning.gaussian_of(open_run(runs / name, torch.device(device)).model)
        again(runs / name, tmp_path / "r", fraction=fraction, device=device)
        gone = pruning.removed(open_run(tmp_path / "r", torch.device(device)).model)
        wanted = copy.deepcopy(before)
        pruning.scale_sigma(wanted, gone, 0.5)
        last = checkpoint.load(tmp_path / "r" / checkpoint.LAST)[0]
        for key, mask in gone.items():
            mean, rho = (last[f"model.{part}.{key}"].to(device) for part in ("module", "posterior.rho"))
            assert torch.equal(mean == 0, mask)
            assert (mean != before.means[key])[~mask].float().mean() > 0.9 or mask.all()
            assert torch.equal(rho, wanted.posterior.rho[key])
            assert torch.equal(rho[~mask], before.posterior.rho[key][~mask])

    def test_a_draw_and_its_kl_are_the_runs_with_means_of_zero_and_half_the_sigma(self, runs, text):
        run = open_run(runs / "brnn-medium", CPU)
        task = Retraining(run.recipe, str(text), CPU, whole=run.model, plan=Schedule(1, 0.1), fraction=0.8)
        task.attach(task.build(run.recipe, task.files()))
        task.start_epoch(1)
        wanted = run.model
        with torch.no_grad():
            for key, mask in pruning.removed(pruned_of(run)).items():
                sigma = torch.nn.functional.softplus(wanted.posterior.rho[key][mask].double())
                wanted.means[key][mask] = 0
                wanted.posterior.rho[key][mask] = torch.log(torch.expm1(sigma / 2)).float()
        terms, drawn = [], []
        for q in (task.model, wanted):
            bound = br.ELBO(q, br.Categorical(), num_data=1000)
            with br.draw(q, seed=1):
                x = task.batch(torch.tensor(0))
                terms.append(bound(q(x[:-1]), x[1:]))
                drawn.append(q._drawn())
        torch.testing.assert_close(drawn[0], drawn[1], rtol=1e-5, atol=1e-7)
        assert torch.isfinite(terms[0].kl)
        torch.testing.assert_close(terms[0].loss, terms[1].loss, rtol=1e-5, atol=0)

    def test_the_kl_is_reported_and_is_that_of_what_is_trained(self, runs, tmp_path):
        """Half the sigma is a larger KL; nothing but that moves it much at a low rate."""
        told, run = Quiet(), open_run(runs / "brnn-medium", CPU)
        again(runs / "brnn-medium", tmp_path / "r", plan=Schedule(4, 1e-4), told=told)
        q, sequences = run.model, run.task(None, CPU).sequences
        whole = br.kl(q).item() / sequences
        last = checkpoint.load(tmp_path / "r" / checkpoint.LAST)[0]
        checkpoint.load_model(q, {key: t for key, t in last.items() if key.startswith("model.")}, "last")
        assert told.lines[-1]["kl_per_sequence"] == pytest.approx(br.kl(q).item() / sequences, rel=1e-3)
        assert told.lines[-1]["kl_per_sequence"] > 1.1 * whole
        record = json.loads((tmp_path / "r" / "record.json").read_text())
        assert record["curves"]["kl_per_sequence"] == [line["kl_per_sequence"] for line in told.lines]

    def test_an_unfinished_run_is_the_pruned_model_too_or_none(self, runs, tmp_path):
        with pytest.raises(InterruptedError):
            again(runs / "brnn-medium", tmp_path / "r", told=Quiet(stop=1))
        with pytest.raises(UserError, match=r"no checkpoint .*best\.safetensors; .* first epoch after the last step\."):
            open_run(tmp_path / "r", CPU)
        with pytest.raises(InterruptedError):
            again(runs / "brnn-medium", tmp_path / "r", told=Quiet(stop=2))
        assert removed_share(tmp_path / "r") == pytest.approx(0.8, abs=1e-3)

    def test_nothing_removed_is_training_on(self, runs, tmp_path):
        again(runs / "brnn-medium", tmp_path / "r", fraction=0.0)
        assert removed_share(tmp_path / "r") == 0


def removed_share(folder):
    gone = pruning.removed(open_run(folder, CPU).model).values()
    return sum(int(g.sum()) for g in gone) / sum(g.numel() for g in gone)


@pytest.mark.parametrize(
    ("stopped", "at"),
    [
        ({"stop": 1}, "Resumed in epoch 2, after step 0."),
        ({"within": 1}, "Resumed in epoch 1, after step 40."),  # what is gone is read off the weights
        ({"within": 2}, "Resumed in epoch 2, after step 40."),
        ({"stop": 4}, "All epochs are done."),
    ],
)
def test_stopped_and_gone_on_with_is_bit_identical(stopped, at, runs, whole, tmp_path):
    resumed(runs, tmp_path / "r", stopped, at)
    assert_same(tmp_path / "r", whole)


@pytest.mark.parametrize(("epoch", "at"), [(2, "Resumed in epoch 3, after step 0."), (4, "All epochs are done.")])
def test_killed_before_the_best_weights_were_written(epoch, at, runs, whole, tmp_path):
    """They are made again of the checkpoint to go on from."""

    def lose(folder):
        assert json.loads((folder / "state.json").read_text())["best"]["epoch"] == epoch
        for name in (checkpoint.BEST, checkpoint.BEST_COPY):
            (folder / name).unlink()

    resumed(runs, tmp_path / "r", {"stop": epoch}, at, lose)
    assert_same(tmp_path / "r", whole)


@pytest.fixture(scope="module")
def whole(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "r"
    again(runs / "brnn-medium", out)
    return out


def resumed(runs, out, stopped, at, meanwhile=lambda folder: None):
    with pytest.raises(InterruptedError):
        again(runs / "brnn-medium", out, told=Quiet(**stopped))
    meanwhile(out)
    told = Quiet()
    again(runs / "brnn-medium", out, told=told)
    assert at in told.said


def assert_same(ours, theirs):
    for name in (checkpoint.BEST, checkpoint.LAST):
        (a, _), (b, _) = checkpoint.load(ours / name), checkpoint.load(theirs / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    shares = [
        [json.loads(line)["removed"] for line in (r / "metrics.jsonl").read_text().splitlines()] for r in (ours, theirs)
    ]
    assert shares[0] == shares[1]


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
    with pytest.raises(UserError, match=r"started with other weights, or removes .* bayesrnn prune"):
        again(runs / "brnn-medium", tmp_path / "r", fraction=0.7)
    settings = Schedule(4, 0.1).settings()
    with pytest.raises(UserError, match="started with other weights"):
        launch(
            "brnn-medium", out=tmp_path / "r", reporter=Quiet(), data=str(text), device="cpu", resume=True,
            overrides=[*LEARNS, *settings],
        )  # fmt: skip


@pytest.mark.parametrize("stop", [1, None])
def test_one_under_other_rules_is_refused(stop, runs, tmp_path):
    """Its config.json says nothing of sigma, nor of steps before that; or another part of sigma."""
    folder = tmp_path / "r"
    with pytest.raises(InterruptedError) if stop else nullcontext():
        again(runs / "brnn-medium", folder, told=Quiet(stop=stop), plan=Schedule(2, 0.1))
    config = json.loads((folder / "config.json").read_text())
    kept = {key: config["pruned"][key] for key in ("fraction", "weights")}
    for rules in ({}, {"steps": 2}, {"steps": 2, "sigma": 1.0}):
        (folder / "config.json").write_text(json.dumps({**config, "pruned": kept | rules}))
        with pytest.raises(UserError, match=r"other weights, .*--force"):
            again(runs / "brnn-medium", folder, plan=Schedule(2, 0.1))
    again(runs / "brnn-medium", folder, force=True, plan=Schedule(1, 0.1))
    assert json.loads((folder / "record.json").read_text())["pruned"]["steps"] == 1


def test_a_rate_that_is_too_high_is_said(runs, tmp_path):
    with pytest.raises(UserError, match=r"With 80% to be removed: The loss .* Here the rate is --retrain-lr"):
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
    assert schedule(recipe, 4) == Schedule(4, 0.25)
    made = override(recipe, schedule(recipe, 1, 1 / 3).settings()).train
    assert (made.lr, made.epochs, made.average_from, made.patience) == (1 / 3, 1, None, None)
