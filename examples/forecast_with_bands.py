"""A forecast with bands in thirty lines of the library: carbon dioxide at Mauna Loa, one year ahead, month by month.

python examples/forecast_with_bands.py [bands.png]
"""

import sys

import torch
from torch import nn

import bayesrnn as br
from bayesrnn.forecasting.series import mauna_loa

torch.manual_seed(0)
series = torch.from_numpy(mauna_loa().target).float()
change = (series.diff() - series[:400].diff().mean()) / series[:400].diff().std()  # scaled on the first 400 months
x = change.unfold(0, 24, 1)[:-12].T.unsqueeze(-1)  # windows of two years, (T, N, 1)
ahead = series[25:].unfold(0, 12, 1) - series[24:-12, None]  # and how far each of the next 12 months is away, (N, 12)
train = 400 - 24 - 12
centre, scale = ahead[:train].mean(0), ahead[:train].std(0)
y = (ahead - centre) / scale


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = br.LSTM(1, 48, recurrent_dropout=0.1)
        self.drop = br.SequenceDropout(0.2)
        self.head = nn.Linear(48, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.rnn(x)[0][-1:])[0])


model = Forecaster()
elbo = br.ELBO(model, br.Gaussian(sigma=0.5), num_data=train * 12)  # the noise is learnt with the weights
optimizer = torch.optim.Adam(elbo.parameters(), lr=0.003)
for _ in range(40):
    for rows in torch.randperm(train).split(32):
        optimizer.zero_grad()
        elbo(model(x[:, rows]), y[rows]).loss.backward()
        optimizer.step()

p = br.predict(model, x[:, train:], samples=100, seed=0, likelihood=elbo.likelihood)
low, high = p.interval(0.95)
inside = br.uncertainty.interval_coverage(low, high, y[train:])
noise, own = ((part.sqrt() * scale).mean() for part in (p.aleatoric, p.epistemic))
print(f"95% intervals hold {inside:.1%} of what came in the last {len(y) - train} windows")
print(f"standard deviation of the noise {noise:.2f} ppm, of the model's own uncertainty {own:.2f} ppm")

if len(sys.argv) > 1:
    from matplotlib.figure import Figure

    months = range(24, 36)  # the last window's forecast, beside what came
    mean, low, high, own = (v[-1] * scale for v in (p.mean, low, high, p.epistemic.sqrt()))
    mean, low, high = (v + centre + series[-13] for v in (mean, low, high))
    axes = (figure := Figure(figsize=(7, 3.5))).add_subplot()
    axes.fill_between(months, low, high, alpha=0.3, label="95% interval")
    axes.fill_between(months, mean - 1.96 * own, mean + 1.96 * own, alpha=0.6, label="of this, the model's own")
    axes.plot(range(36), series[-36:], "k.-", label="measured")
    axes.plot(months, mean, label="forecast")
    axes.set(xlabel="month", ylabel="CO2, ppm")
    axes.legend()
    figure.savefig(sys.argv[1])
