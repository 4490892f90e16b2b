"""The objective, and the KL that it scales in one place."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import bayesrnn as br


def test_loss_is_nll_per_target_plus_kl_per_datum_exactly():
    torch.manual_seed(0)
    q = br.BayesByBackprop(nn.LSTM(4, 7).double(), br.Normal(0.3), init_sigma=0.1)
    x, y = torch.randn(5, 3, 4, dtype=torch.float64), torch.randint(7, (5, 3))
    for num_data in (15, 40, 929_589):
        out = q(x)
        terms = br.ELBO(q, br.Categorical(), num_data=num_data)(out, y)
        nll = nn.functional.cross_entropy(out[0].flatten(0, 1), y.flatten(), reduction="sum")
        torch.testing.assert_close(terms.nll, nll, rtol=1e-14, atol=0)
        torch.testing.assert_close(terms.kl, br.kl(q), rtol=1e-14, atol=0)
        torch.testing.assert_close(terms.loss, nll / 15 + br.kl(q) / num_data, rtol=1e-14, atol=0)
        assert float(terms.sharpening) == 0


def test_batches_of_an_epoch_add_up_to_the_bound():
    q = br.BayesByBackprop(nn.Linear(3, 1).double(), br.Normal(0.3))
    x, y = torch.randn(10, 3, dtype=torch.float64), torch.randn(10, 1, dtype=torch.float64)
    elbo = br.ELBO(q.eval(), br.Gaussian(0.5, learn=False), num_data=10)
    whole = elbo(q(x), y)
    cut = sum(len(a) * elbo(q(a), b).loss for a, b in zip(x.split(4), y.split(4), strict=True))
    torch.testing.assert_close(cut, whole.nll + whole.kl)


@pytest.mark.parametrize("wrap", [lambda o: o, lambda o: (o, None), lambda o: (o, (o, o)), lambda o: [o]])
def test_first_part_of_what_the_model_returns_is_the_output(wrap):
    elbo = br.ELBO(nn.Identity(), br.Categorical(), num_data=3)
    out, y = torch.randn(4, 5), torch.randint(5, (4,))
    torch.testing.assert_close(elbo(wrap(out), y).loss, nn.functional.cross_entropy(out, y))


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("packed_target", [False, True])
def test_packed_sequences(with_state, packed_target):
    layer = nn.LSTM(3, 5)
    x = pack_sequence([torch.randn(n, 3) for n in (2, 4, 1)], enforce_sorted=False)
    y = pack_sequence([torch.randint(5, (n,)) for n in (2, 4, 1)], enforce_sorted=False)
    out, state = layer(x)
    elbo = br.ELBO(layer, br.Categorical(), num_data=7)
    terms = elbo((out, state) if with_state else out, y if packed_target else y.data)
    torch.testing.assert_close(terms.loss, nn.functional.cross_entropy(out.data, y.data))


def test_padding_counts_neither_above_nor_below():
    out, y = torch.randn(6, 5), torch.randint(5, (6,))
    y[4:] = -100
    elbo = br.ELBO(nn.Identity(), br.Categorical(), num_data=3)
    torch.testing.assert_close(elbo(out, y).loss, nn.functional.cross_entropy(out[:4], y[:4]))
    y[:] = -100
    with pytest.raises(ValueError, match="no target of this batch counts"):
        elbo(out, y)


@pytest.mark.parametrize("num_data", [np.int64(100), np.float32(100), np.uint8(100)])
def test_num_data_may_be_numpys(num_data):
    torch.manual_seed(0)
    q = br.BayesByBackprop(nn.Linear(2, 3))
    x, y = torch.randn(4, 2), torch.zeros(4).long()
    with br.draw(q, seed=0):
        expected = br.ELBO(q, br.Categorical(), num_data=100)(q(x), y).loss
        elbo = br.ELBO(q, br.Categorical(), num_data=num_data)
        assert type(elbo.num_data) in (int, float)
        assert torch.equal(elbo(q(x), y).loss, expected)


@pytest.mark.parametrize("num_data", [np.int64(0), np.bool_(True), 0, -5, math.nan, True, "many", None])
def test_num_data_must_be_a_number_of_targets(num_data):
    with pytest.raises(ValueError, match="num_data must be the number of training targets"):
        br.ELBO(nn.Identity(), br.Categorical(), num_data=num_data)


def test_num_data_is_keyword_only():
    with pytest.raises(TypeError):
        br.ELBO(nn.Identity(), br.Categorical(), 10)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_an_error_that_names_the_part(bad):
    q = br.BayesByBackprop(nn.Linear(2, 1))
    elbo = br.ELBO(q, br.Gaussian(), num_data=3)
    with pytest.raises(FloatingPointError, match="the negative log-likelihood is not finite"):
        elbo(q(torch.tensor([[bad, 1.0]])), torch.zeros(1, 1))
    with torch.no_grad():
        q.module.bias.fill_(bad)
    with pytest.raises(
        FloatingPointError, match=r"the KL is not finite, and weights module\.bias are not: look for NaN"
    ):
        elbo(torch.zeros(1, 1), torch.zeros(1, 1))
    unchecked = br.ELBO(q, br.Gaussian(), num_data=3, check_finite=False)
    assert not torch.isfinite(unchecked(torch.zeros(1, 1), torch.zeros(1, 1)).loss)


def far(prior, **kwargs):
    return br.BayesByBackprop(nn.Linear(2, 1), prior=prior, **kwargs)


@pytest.mark.parametrize(
    ("model", "length_scale"),
    [
        (lambda: far(br.Normal(1e-12), init_sigma=1e10), 1.0),
        (lambda: far(br.Normal(1e-30)), 1.0),
        (lambda: far(br.ScaleMixture(0.5, 1e-30, 1e-32), init_sigma=1.0), 1.0),
        (lambda: br.LSTM(2, 1, recurrent_dropout=0.5), 1e30),
    ],
)
@pytest.mark.parametrize("target", [0.0, math.nan])
def test_a_kl_that_the_prior_makes_infinite_is_not_blamed_on_the_data(model, length_scale, target):
    elbo = br.ELBO(model(), br.Gaussian(), num_data=3, length_scale=length_scale)
    with pytest.raises(
        FloatingPointError, match=r"the KL is not finite, though all weights are: sigma .* prior"
    ) as error:
        elbo(torch.zeros(1, 1), torch.full((1, 1), target))
    assert "NaN" not in str(error.value)


# ---- br.kl of models without a Gaussian posterior


def test_kl_of_a_plain_module_is_zero_in_its_dtype():
    assert float(br.kl(nn.LSTM(3, 4, num_layers=2, dropout=0.5))) == 0
    assert br.kl(nn.Linear(2, 2).double()).dtype == torch.float64
    assert float(br.kl(nn.Identity())) == 0
    assert float(br.kl(br.LSTM(3, 4))) == 0


@pytest.mark.parametrize("length_scale", [1.0, 0.1, 3.0])
def test_kl_of_dropout_is_the_l2_form_with_length_scale(length_scale):
    model = nn.Sequential(
        br.Embedding(9, 4, word_dropout=0.2),
        br.LSTM(4, 3, num_layers=2, input_dropout=0.35, recurrent_dropout=0.25, bidirectional=True),
    ).double()
    expected = 0.8 * model[0].weight.square().sum()
    for name, weight in model[1].named_parameters():
        keep = 0.65 if "weight_ih" in name else 0.75 if "weight_hh" in name else 0.0
        expected = expected + keep * weight.square().sum()
    torch.testing.assert_close(br.kl(model, length_scale=length_scale), 0.5 * length_scale**2 * expected)
    elbo = br.ELBO(model, br.Categorical(), num_data=50, length_scale=length_scale)
    terms = elbo(model(torch.randint(9, (5, 2))), torch.randint(6, (5, 2)))
    torch.testing.assert_close(terms.kl, 0.5 * length_scale**2 * expected)
    torch.testing.assert_close(terms.loss, terms.nll / 10 + terms.kl / 50)


def test_kl_of_dropout_is_the_same_in_any_mode_for_any_length_and_in_a_draw():
    model = br.GRU(4, 3, recurrent_dropout=0.25, weight_dropout=0.5, share="batch")
    expected = 0.5 * 0.75 * 0.5 * model.weight_hh_l0.square().sum()
    torch.testing.assert_close(br.kl(model), expected)
    model(torch.randn(50, 2, 4))
    torch.testing.assert_close(br.kl(model), expected)
    torch.testing.assert_close(br.kl(nn.Sequential(nn.Sequential(model.eval()))), expected)
    with br.draw(model):
        torch.testing.assert_close(br.kl(model), expected)
    torch.testing.assert_close(br.kl(model.double()), expected.double())


def test_kl_of_dropout_counts_tied_weights_once():
    a, b = br.Embedding(9, 4, word_dropout=0.2), br.Embedding(9, 4, word_dropout=0.2)
    b.weight = a.weight
    torch.testing.assert_close(br.kl(nn.ModuleList([a, b])), 0.5 * 0.8 * a.weight.square().sum())


def test_kl_of_a_mixed_model_adds_up():
    drop = br.LSTM(3, 4, recurrent_dropout=0.5)
    q = br.BayesByBackprop(nn.Linear(4, 2))
    torch.testing.assert_close(br.kl(nn.ModuleList([drop, q])), br.kl(drop) + br.kl(q))


def test_kl_gradients_are_weight_decay():
    model = br.LSTM(3, 4, input_dropout=0.2)
    br.kl(model, length_scale=2.0).backward()
    torch.testing.assert_close(model.weight_ih_l0.grad, 0.8 * 4.0 * model.weight_ih_l0.detach())
    assert model.weight_hh_l0.grad is None


@pytest.mark.parametrize("length_scale", [-1, 0, math.nan, math.inf, "1", True])
def test_a_length_scale_is_a_positive_number(length_scale):
    model = br.LSTM(3, 4, input_dropout=0.2)
    with pytest.raises(ValueError, match="length_scale must be a positive number"):
        br.kl(model, length_scale=length_scale)
    with pytest.raises(ValueError, match="length_scale must be a positive number"):
        br.ELBO(model, br.Categorical(), num_data=5, length_scale=length_scale)


class TestWeightOfTheKL:
    def made(self, **options):
        torch.manual_seed(0)
        q = br.BayesByBackprop(nn.Linear(3, 2), init_sigma=0.1)
        return q, br.ELBO(q, br.Categorical(), num_data=50, **options)

    x, y = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])

    @pytest.mark.parametrize("weight", [1.0, 0.1, 2.0])
    def test_a_constant_weight(self, weight):
        q, elbo = self.made(kl_weight=weight)
        terms = elbo(q(self.x), self.y)
        torch.testing.assert_close(terms.loss, terms.nll / 4 + weight * terms.kl / 50)

    def test_none_is_maximum_likelihood(self):
        q, elbo = self.made(kl_weight=0)
        terms = elbo(q(self.x), self.y)
        assert float(terms.kl) == 0
        torch.testing.assert_close(terms.loss, terms.nll / 4)

    @pytest.mark.parametrize("warmup", [{"warmup": 4}, {"warmup_epochs": 0.32}])
    def test_it_rises_over_the_warm_up_and_the_loss_is_the_bound_then(self, warmup):
        """Four steps of four targets are 0.32 of an epoch of 50."""
        q, elbo = self.made(kl_weight=0.5, **warmup)

        def weight():
            terms = elbo(q(self.x), self.y)
            return float((terms.loss - terms.nll / 4).detach() / terms.kl.detach() * 50)

        assert [weight() for _ in range(6)] == pytest.approx([0, 0.125, 0.25, 0.375, 0.5, 0.5], abs=1e-5)

    def test_the_warm_up_counts_training_only_and_is_saved(self):
        q, elbo = self.made(warmup=10)
        for _ in range(3):
            elbo(q(self.x), self.y)
        elbo.eval()
        terms = elbo(q(self.x), self.y)
        torch.testing.assert_close(terms.loss, terms.nll / 4 + terms.kl / 50)  # validation is by the bound itself
        elbo.train()
        q.eval()
        elbo(q(self.x), self.y)
        again = self.made(warmup=10)[1]
        again.load_state_dict(elbo.state_dict())
        assert int(again.calls) == int(copy.deepcopy(elbo).calls) == 3
        assert not any("calls" in key for key in self.made()[1].state_dict())

    @pytest.mark.parametrize(
        "bad",
        [
            {"kl_weight": -1},
            {"kl_weight": math.nan},
            {"warmup": -1},
            {"warmup": 2.5},
            {"window": 0},
            {"warmup_epochs": -1},
            {"warmup_epochs": math.inf},
            {"warmup_epochs": 1, "warmup": 3},
        ],
    )
    def test_bad_arguments(self, bad):
        with pytest.raises(ValueError, match=next(iter(bad))):
            self.made(**bad)

    def test_windows_masks_counts_and_shares(self):
        q, elbo = self.made()
        with br.draw(q, seed=0):
            out = q(self.x)
            terms, windowed = elbo(out, self.y), self.made(window=7)[1]
            windowed.model = q
            torch.testing.assert_close(windowed(out, self.y).loss, 7 * terms.loss)
            mask = torch.tensor([True, False, True, True])
            masked = elbo(out, self.y, mask=mask)
            torch.testing.assert_close(masked.loss, elbo(out[mask], self.y[mask]).loss)
            torch.testing.assert_close(elbo(out, self.y, count=8).loss, terms.nll / 8 + terms.kl / 50)
            torch.testing.assert_close(elbo(out, self.y, share=3.0).loss, terms.nll / 4 + 3 * terms.kl / 50)
            given = elbo(out, self.y, kl=torch.tensor(5.0))
            torch.testing.assert_close(given.loss, terms.nll / 4 + 5.0 / 50)
            evaluated, output = elbo.evaluate(lambda: (q(self.x), "state"), self.y)
            assert output[1] == "state"
            torch.testing.assert_close(evaluated.loss, terms.loss)

    def test_a_batch_of_more_targets_than_num_data_is_warned_about_once(self):
        q, elbo = self.made()
        elbo.num_data = 3
        with pytest.warns(UserWarning, match=r"has 4 targets, more than num_data=3,.* sum likelihood\.count"):
            elbo(q(self.x), self.y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            elbo(q(self.x), self.y)
            elbo = br.ELBO(q, br.Categorical(), num_data=4)
            elbo(q(self.x), self.y)  # all of the training set at once
            elbo.eval()
            elbo(q.eval()(self.x.repeat(2, 1)), self.y.repeat(2))  # a test set may have more
            plain = nn.Linear(3, 2)
            br.ELBO(plain, br.Categorical(), num_data=1)(plain(self.x), self.y)  # without a KL it does not matter

    @pytest.mark.parametrize("learns_at", [140, None])
    def test_a_model_that_learns_late_is_not_warned_about(self, learns_at):
        """-log p stays at log 3 while the KL falls by a third in 100 steps, as it does for waves and br.Normal(0.3)."""
        _, elbo = self.made()
        model = elbo.model = nn.Linear(1, 3)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for step in range(250):
                learnt = 0.0 if learns_at is None else max(0.0, step - learns_at) / 20
                logits = model(torch.ones(4, 1)) * 0 + torch.tensor([learnt, 0.0, 0.0])
                elbo(logits, torch.zeros(4, dtype=torch.long), kl=torch.tensor(72 * (1 - step / 300)))
        assert ["the KL outweighs the data" in str(one.message) for one in seen] == [True] * (learns_at is None)

    def test_a_model_that_learns_is_not_warned_about(self):
        q, elbo = self.made()
        x, optimizer = torch.eye(3)[[0, 1, 2, 0]], torch.optim.Adam(q.parameters(), lr=0.05)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses = []
            for _ in range(150):
                optimizer.zero_grad()
                losses.append(elbo(q(x), self.y).loss)
                losses[-1].backward()
                optimizer.step()
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("padding", [0.0, 1000.0, math.nan])
def test_padding_does_not_steer_the_sharpened_weights(padding):
    torch.manual_seed(0)
    s = br.PosteriorSharpening(br.BayesByBackprop(nn.Linear(4, 1)))
    elbo = br.ELBO(s, br.Gaussian(), num_data=100)
    x, y, mask = torch.randn(6, 4), torch.randn(6, 1), torch.arange(6) < 4
    terms = []
    for rows in (slice(0, 4), slice(0, 6)):
        y[4:] = padding
        options = {} if rows.stop == 4 else {"mask": mask}
        with br.draw(s, seed=1):
            terms.append(elbo.evaluate(lambda rows=rows: s(x[rows]), y[rows], **options)[0])
    torch.testing.assert_close(terms[0].sharpening, terms[1].sharpening)
    torch.testing.assert_close(terms[0].nll, terms[1].nll)


def test_a_warm_up_in_epochs_under_another_default_device():
    x, y = torch.randn(5, 4), torch.randn(5, 2)
    q = br.BayesByBackprop(nn.Linear(4, 2))
    elbo = br.ELBO(q, br.Gaussian(), num_data=30, warmup_epochs=2.0)
    with torch.device("meta"):
        elbo(q(x), y)
    assert float(elbo.calls) == 10
