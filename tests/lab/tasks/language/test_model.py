from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.tasks.language.model import LanguageModel, LSTMStack, activity, zero_state
from bayesrnn.lab.tasks.language.settings import Model

CPU = torch.device("cpu")
SMALL = ["model.embedding=5", "model.hidden=7", "data.batch_size=3", "data.window=4"]


@pytest.fixture
def folder(tmp_path):
    words = torch.randint(10, (130,), generator=torch.Generator().manual_seed(1)).tolist()
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(" ".join(f"w{word}" for word in words))
    return str(tmp_path)


def task_of(folder, *overrides, name="awd-24m"):
    recipe = override(load(name), [*SMALL, *overrides])
    task = language.Language(recipe, folder, CPU)
    torch.manual_seed(0)
    task.attach(task.build(recipe, task.files()).train())
    return task


@pytest.mark.parametrize("tied", [True, False])
def test_widths_of_layers_are_those_of_torch_layers_in_a_row(tied):
    m = Model(embedding=5, hidden=7, layers=3, tied=tied)
    model, last = LanguageModel(11, m), 5 if tied else 7
    assert m.widths == (5, 7, 7, last)
    layers = [nn.LSTM(a, b) for a, b in ((5, 7), (7, 7), (7, last))]
    for layer, ours in zip(layers, model.rnn, strict=True):
        layer.load_state_dict(ours.state_dict())
    x = torch.randint(11, (6, 2))
    hidden, states = model.embed(x), ()
    for layer in layers:
        hidden, state = layer(hidden)
        states += state
    logits, after = model(x, zero_state(m, 2, CPU))
    torch.testing.assert_close(logits, model.decoder(hidden))
    torch.testing.assert_close(after, states)
    torch.testing.assert_close(model(x[3:], model(x[:3])[1])[0], logits[3:])  # the state is carried
    assert (model.decoder.weight is model.embed.weight) is tied


def test_rates_of_their_own():
    m = Model(embedding=5, hidden=7, layers=3, input_dropout=0.4, between_dropout=0.25, weight_dropout=0.5)
    rnn = LanguageModel(11, m).rnn
    assert isinstance(rnn, LSTMStack)
    assert [layer.input_dropout for layer in rnn] == [0.4, 0.25, 0.25]
    assert [layer.weight_dropout for layer in rnn] == [0.5] * 3
    assert isinstance(LanguageModel(11, Model(hidden=7, input_dropout=0.4)).rnn, br.LSTM)  # as before
    rates = [
        layer.input_dropout for layer in LanguageModel(11, Model(hidden=7, between_dropout=0.1, input_dropout=0.2)).rnn
    ]
    assert rates == [0.2, 0.1]


def test_torch_init_leaves_layers_as_torch_makes_them():
    torch.manual_seed(0)
    model = LanguageModel(11, Model(embedding=100, hidden=400, tied=True, init=0.1, torch_init=True))
    for layer, bound in zip(model.rnn, (0.05, 0.1), strict=True):  # 1 / sqrt of 400 and of 100 units
        largest = max(float(p.detach().abs().max()) for p in layer.parameters())
        assert 0.99 * bound < largest <= bound
    assert 0.09 < float(model.embed.weight.detach().abs().max()) <= 0.1
    assert not model.decoder.bias.any()


def test_step_dropout_is_refused_where_layers_differ():
    with pytest.raises(UserError, match="between_dropout in its place"):
        Model(embedding=5, step_dropout=0.1)


def test_penalties_on_activations():
    m = Model(embedding=5, hidden=7, tied=True, output_dropout=0.5, activation=2.0, activation_change=3.0)
    model = LanguageModel(11, m).train()
    x = torch.randint(11, (6, 2))
    with activity(model, m) as found, br.draw(model, seed=1):
        model(x)
    with br.draw(model, seed=1), torch.no_grad():
        hidden, _ = model.rnn(model.embed(x))
        mask = model.drop(hidden) / hidden
    assert set(mask.round().flatten().tolist()) == {0.0, 2.0}
    count = hidden.numel()
    activation = sum(float((mask[t] * hidden[t]).square().sum()) for t in range(6)) / count
    change = sum(float((hidden[t] - hidden[t + 1]).square().sum()) for t in range(5)) / (count * 5 / 6)
    assert float(found[0].detach()) == pytest.approx(2 * activation + 3 * change, rel=1e-5)  # arXiv 1708.01009
    assert len(found) == 1
    model(x)
    assert len(found) == 1  # outside the block nothing is added
    with activity(model, Model()) as none:
        model(x)
    assert none == []


@pytest.mark.parametrize("name", ["awd-24m", "brnn-24m"])
def test_loss_per_word_is_that_of_the_window_divided_by_its_length(name, folder):
    found = {}
    for kind in ("word", "window"):
        task = task_of(folder, f"data.loss={kind}", "model.activation=2", "model.activation_change=1", name=name)
        torch.manual_seed(1)
        loss, terms, after = task.objective(task.batch(torch.tensor(0)), task.state())
        found[kind] = float(loss.detach()), float(terms.nll.detach())
        assert [a.shape for a in after] == [(1, 3, n) for n in (7, 7, 7, 7, 5, 5)]
    assert found["window"][0] == pytest.approx(4 * found["word"][0], rel=1e-5)
    assert found["word"][1] == found["window"][1]
    assert found["word"][0] > found["word"][1] / 12  # the penalties, and of brnn the KL


def test_shifted_windows(folder):
    task = task_of(folder)
    train, steps, seen = task.streams.train, task.steps, set()
    assert steps == (len(train) - 4) // 4
    for epoch in range(1, 30):
        task.start_epoch(epoch)
        offset = int(task.offset)
        seen.add(offset)
        for k in (0, steps - 1):
            start = offset + 4 * k
            assert torch.equal(task.batch(torch.tensor(k)), train[start : start + 5])
            assert len(train[start : start + 5]) == 5
    assert seen == {0, 1, 2, 3}
    with pytest.raises(UserError, match=r"in each of 19 streams, fewer than one window .* that data.shift or"):
        task_of(folder, "data.batch_size=19")  # 6 words are a window and the next word, but not after 3 others
    assert task.tensors()["offset"] is task.offset
    assert task_of(folder, "data.shift=false").tensors() == {}


@pytest.mark.parametrize("name", ["awd-24m", "brnn-24m"])
def test_windows_of_random_length(name, folder):
    """Each is the window of its length alone, under the same draw; the next one begins where it ends."""
    task = task_of(folder, "data.vary=2", "model.activation=0", "model.activation_change=0", name=name)
    train, lengths, state = task.streams.train, [], tuple(s.normal_() for s in task.state())
    task.offset.zero_()
    for step in range(task.steps - 2):
        start = sum(lengths)
        batch = task.batch(torch.tensor(step))
        assert torch.equal(batch, train[start : start + 7])
        torch.manual_seed(step)
        loss, terms, after = task.objective(batch, state)
        lengths.append(4 + int(task.offset) - (start - 4 * step))
        torch.manual_seed(step)
        torch.randint(3, (1,))
        with br.draws.bind(task.model, br.draws.HeldNoise()):
            logits, expected = task.model(batch[: lengths[-1]], state)
            nll = nn.functional.cross_entropy(
                logits.flatten(0, 1), batch[1 : lengths[-1] + 1].flatten(), reduction="sum"
            )
            kl = task.recipe.model.kl_weight * br.kl(task.model) if name == "brnn-24m" else 0.0
        torch.testing.assert_close(terms.nll, nll)
        torch.testing.assert_close(after, expected)
        units = 4 if task.recipe.data.loss == "window" else 1
        torch.testing.assert_close(loss, units * (nll / 12 + kl / task.elbo.num_data))
        state = tuple(s.detach() for s in after)
    assert set(lengths) == {2, 4, 6}
    task.offset.fill_(1000)
    assert torch.equal(task.batch(torch.tensor(0)), train[-7:])  # never beyond the text
    task.start_epoch(1)
    assert 0 <= int(task.offset) < 4
    assert task_of(folder, "data.vary=1", "data.shift=false").tensors().keys() == {"offset"}
    with pytest.raises(UserError, match="is for one process"):
        task.split(slice(0, 1))
    with pytest.raises(UserError, match=r"data.vary is 4, and windows have 4 words; make it less"):
        task_of(folder, "data.vary=4")
    with pytest.raises(UserError, match=r"without train.shared_draw and sharpening"):
        task_of(folder, "data.vary=1", "posterior.kind=sharpened")


def test_posterior_over_layers_of_different_widths(folder):
    task = task_of(folder, name="brnn-24m")
    posteriors = {name: sigma for name, _, sigma in task.model.named_posteriors()}
    assert "decoder.weight" not in posteriors  # the embedding's
    assert {"embed.weight", "rnn.0.weight_ih_l0", "rnn.2.bias_ih_l0"} <= posteriors.keys()
    assert not any("bias_hh" in name or name == "decoder.bias" for name in posteriors)
    prior, settings = task.model.posterior.prior.sigma, task.recipe.posterior
    for name, (low, high) in {
        "rnn.1.weight_hh_l0": (settings.lstm_low, settings.lstm_high),
        "embed.weight": (settings.other_low, settings.other_high),
    }.items():
        found = posteriors[name].detach() / prior
        assert low - 1e-3 <= float(found.min()) < 1.1 * low
        assert 0.9 * high < float(found.max()) <= high + 1e-3


@pytest.mark.parametrize("name", ["awd-24m", "brnn-24m"])
def test_a_run_of_unequal_widths_is_trained_and_evaluated(name, folder, tmp_path):
    from bayesrnn.lab.engine.launch import launch
    from bayesrnn.lab.engine.progress import Silent

    settings = [*SMALL, "train.epochs=3", "train.lr=0.5", "train.average_from=2"]
    record = launch(name, out=tmp_path / "run", reporter=Silent(), data=folder, overrides=settings, seed=1)
    run = open_run(tmp_path / "run", CPU)
    best, about = checkpoint.load(tmp_path / "run" / checkpoint.BEST)
    last, _ = checkpoint.load(tmp_path / "run" / checkpoint.LAST)
    assert about["epoch"] == 3  # its weights are those of epochs 2 and 3, averaged
    for k, (key, _) in enumerate(p for p in run.model.named_parameters() if p[1].requires_grad):
        assert torch.equal(best[f"model.{key}"], last[f"step.average.{k}"])
        assert not torch.equal(best[f"model.{key}"], last[f"model.{key}"])
    metrics = run.task(folder, CPU).evaluate(samples=2)
    assert metrics["test_perplexity"] == pytest.approx(record.metrics["test_perplexity"], rel=1e-4)
    assert metrics["test_perplexity_mc"] < 20
    signature = language.Language.signature(run)
    assert signature.input_names[:3] == ("tokens", "h1", "c1")
    assert len(signature.input_names) == len(signature.axes) == len(signature.tensors) == 7
    assert len(signature.model(*signature.inputs)[1]) == 6


def test_time_of_an_evaluation_is_that_of_all_its_words(folder, monkeypatch):
    """Measured on a part: words side by side after each epoch, words one by one at the end."""
    task, now = task_of(folder), [0.0]
    monkeypatch.setattr(language, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(language, "_TRIED", 6)

    def score(model, stream):
        now[0] += 3.0 * (len(stream) - 1)

    monkeypatch.setattr(task, "perplexity_of", score)
    each, end = task.evaluation_seconds()
    assert each == pytest.approx(3.0 * len(task.valid_streams))
    assert end == pytest.approx(3.0 * (len(task.streams.valid) + len(task.streams.test)))
    assert now[0] == 3.0 * 2 * (4 + 6)
