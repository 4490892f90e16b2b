"""Spotting sensor faults: a reading that its forecast all but excludes is a fault, and does not enter the history.

A made-up sensor: a daily cycle, weather that comes and goes, and noise. The model learns from 80 days without faults to
forecast the next reading as a distribution. Then 40 days follow with faults: spikes, a sensor that sticks, one that
drifts. A reading is flagged when it lies so far out that one in a thousand would. Its forecast takes its place in the
history, and the longer that goes on, the less the next forecast excludes. When readings are believed again, a straight
line takes the place of those in between.

    python examples/sensor_faults.py
"""

import math
from statistics import NormalDist

import torch
from torch import Tensor, nn

import bayesrnn as br

STEPS = 24  # readings per day
WINDOW = 24
TAIL = 1e-3
LATE = 3  # a flag so many readings after a fault is its doing: the jump back


def readings(days: int, generator: torch.Generator) -> Tensor:
    """Degrees, one reading per hour."""
    hours = torch.arange(days * STEPS)
    weather, level = [], 0.0
    for shock in torch.randn(len(hours), generator=generator).tolist():
        level = 0.97 * level + 0.15 * shock
        weather.append(level)
    noise = 0.1 * torch.randn(len(hours), generator=generator)
    return 15 + 5 * torch.sin(2 * math.pi * hours / STEPS) + torch.tensor(weather) + noise


def with_faults(clean: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, list[range]]]:
    """Readings with faults in them, and which steps each fault covers."""
    values = clean.clone()
    kinds = ["spike"] * 8 + ["stuck"] * 4 + ["drift"] * 4
    places = 30 + torch.randperm(len(clean) // 40 - 1, generator=generator)[: len(kinds)] * 40
    found: dict[str, list[range]] = {}
    for kind, start in zip(kinds, places.tolist(), strict=True):
        steps = range(start, start + {"spike": 1, "stuck": 10, "drift": 12}[kind])
        found.setdefault(kind, []).append(steps)
        if kind == "spike":
            values[start] += 4.0 if start % 2 else -4.0
        elif kind == "stuck":
            values[steps.start : steps.stop] = values[start - 1]
        else:
            values[steps.start : steps.stop] += 0.4 * torch.arange(1, len(steps) + 1)
    return values, found


class Forecaster(nn.Module):
    """The next reading's change, from a day of changes and the levels they led to."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = br.LSTM(2, 32, recurrent_dropout=0.1)
        self.drop = br.SequenceDropout(0.1)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.rnn(x)[0][-1:])[0])


def windows(values: Tensor) -> Tensor:
    """(T, N, 2): level and change of WINDOW readings, for every reading that has a successor and a whole window."""
    level, change = (values[1:] - 15) / 5, values.diff()
    both = torch.stack([level, change], -1)[:-1]
    return both.unfold(0, WINDOW, 1).permute(2, 0, 1)


def trained(values: Tensor) -> tuple[Forecaster, br.Gaussian]:
    x, y = windows(values), values.diff()[WINDOW:].unsqueeze(1)
    model = Forecaster()
    elbo = br.ELBO(model, br.Gaussian(sigma=0.5), num_data=len(y))
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.005)
    for _ in range(8):
        for rows in torch.randperm(len(y)).split(64):
            optimizer.zero_grad()
            elbo(model(x[:, rows]), y[rows]).loss.backward()
            optimizer.step()
    assert isinstance(elbo.likelihood, br.Gaussian)
    return model, elbo.likelihood


def forecast(model: nn.Module, noise: br.Gaussian, past: Tensor) -> tuple[float, float, float]:
    """Mean and standard deviation of the next reading, and the share of the variance that is the model's own."""
    x = windows(torch.cat([past[-WINDOW - 1 :], past[-1:]]))  # the last entry only makes room for a successor
    p = br.predict(model, x, samples=16, seed=0, likelihood=noise)
    return float(past[-1] + p.mean), float(p.variance.sqrt()), float(p.epistemic / p.variance)


def flags(model: nn.Module, noise: br.Gaussian, past: Tensor, values: Tensor) -> tuple[list[int], list[float]]:
    """Steps that are flagged, and the model's own share of the uncertainty at every step."""
    reach = NormalDist().inv_cdf(1 - TAIL / 2)
    found, shares, missed = [], [], 0
    for step, reading in enumerate(values):
        mean, sd, share = forecast(model, noise, past)
        shares.append(share)
        fault = abs(float(reading) - mean) > reach * sd * math.sqrt(missed + 1)  # errors add up while nothing is known
        past = torch.cat([past, torch.tensor([mean]) if fault else reading.unsqueeze(0)])
        if fault:
            found.append(step)
        elif missed:  # now both ends of the stretch are known
            past[-missed - 2 :] = torch.linspace(float(past[-missed - 2]), float(past[-1]), missed + 2)
        missed = missed + 1 if fault else 0
    return found, shares


def grouped(flagged: list[int]) -> list[list[int]]:
    """Flags with at most two readings between them are one alarm."""
    alarms: list[list[int]] = []
    for step in flagged:
        if alarms and step - alarms[-1][-1] <= 3:
            alarms[-1].append(step)
        else:
            alarms.append([step])
    return alarms


def main() -> dict[str, float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    clean = readings(120, generator)
    model, noise = trained(clean[: 80 * STEPS])
    values, faults = with_faults(clean[80 * STEPS :], generator)
    flagged, shares = flags(model, noise, clean[: 80 * STEPS], values)
    around = {kind: [range(part.start, part.stop + LATE) for part in parts] for kind, parts in faults.items()}
    every = [part for parts in around.values() for part in parts]
    alarms = grouped(flagged)
    right = sum(any(set(alarm) & set(part) for part in every) for alarm in alarms)
    found = {kind: sum(any(step in part for step in flagged) for part in parts) for kind, parts in around.items()}
    for kind, parts in around.items():
        print(f"{kind}: {found[kind]} of {len(parts)} found")
    result = {"precision": right / max(len(alarms), 1), "recall": sum(found.values()) / len(every)}
    print(f"{len(alarms)} alarms in {len(values)} readings, {right} of them at a fault")
    print(f"precision {result['precision']:.2f}, recall {result['recall']:.2f}")
    print(f"the model's own share of a forecast's variance: {sum(shares) / len(shares):.1%}")
    return result


if __name__ == "__main__":
    main()
