"""Let a model pass on the reviews it is least certain about, and see the error of the rest.

    python examples/reject_least_certain.py                          # made-up reviews, about 20 seconds on a CPU
    python examples/reject_least_certain.py --data DIR --epochs 20   # Pang and Lee's scale data, a GPU is welcome
    python examples/reject_least_certain.py --plot curve.png         # the curve as a picture too

A variational LSTM predicts ratings from 0 to 1. Fifty draws of its weights disagree more on some reviews than on
others. Does that spread find the errors? The program prints the error of the predictions that are kept, beside that of
random choices. In the made-up reviews the long ones are hard, and draws disagree on them: rejecting helps. In the real
reviews short pieces are hard, and draws agree on them: it does not help (docs/results/sentiment.md).
"""

import argparse
import random

import torch

import bayesrnn as br
from bayesrnn.lab.tasks.sentiment import reviews
from bayesrnn.lab.tasks.sentiment.settings import Model
from bayesrnn.lab.tasks.sentiment.task import RatingModel


def made_up(count: int, seed: int = 0) -> list[reviews.Review]:
    """Every word moves the rating up or down, by a step that differs from film to film: long reviews are hard."""
    source = random.Random(seed)
    made = []
    for _ in range(count):
        words = [
            (source.choice(["good", "bad"]), source.randrange(20)) for _ in range(source.choice([2, 4, 8, 16, 30]))
        ]
        steps = [(1 if kind == "good" else -1) + source.gauss(0, 1) for kind, _ in words]
        rating = min(max(0.5 + 0.05 * sum(steps), 0.0), 1.0)
        made.append(reviews.Review("nobody", [*(f"{kind}{i}" for kind, i in words), reviews.END], rating))
    return made


def train(model: RatingModel, data: reviews.Chunks, mean: float, sd: float, epochs: int) -> None:
    targets = ((data.ratings - mean) / sd).float().unsqueeze(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(data), device=targets.device).split(64):
            loss = torch.nn.functional.mse_loss(model(data.tokens[:, rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
        print(f"epoch {epoch + 1}/{epochs}: training RMSE {sd * float(total / len(data)) ** 0.5:.3f}", flush=True)


def compare(curve: br.uncertainty.RiskCoverage, losses: torch.Tensor, orders: int = 500) -> str:
    """The area under the curve beside that of random orders and of the best one, which sorts by the errors."""
    source = torch.Generator().manual_seed(1)
    scores = torch.rand(orders, len(losses), generator=source).to(losses.device)
    areas = [br.uncertainty.risk_coverage(score, losses).area for score in scores]
    best = br.uncertainty.risk_coverage(losses, losses).area
    beaten = sum(area > curve.area for area in areas)
    return (
        f"Area under the curve of squared errors: {curve.area:.4f} by spread, {sum(areas) / orders:.4f} in random "
        f"order, {best:.4f} by the errors themselves. The order by spread is better than {beaten} of {orders} "
        "random ones."
    )


def plot(curve: br.uncertainty.RiskCoverage, file: str) -> None:
    """Error of what is kept against how much is kept; from 5% on, as fewer are mostly chance."""
    from matplotlib.figure import Figure

    shown = curve.coverage >= 0.05
    axes = (figure := Figure(figsize=(6, 3.5), layout="constrained")).add_subplot()
    axes.plot(100 * curve.coverage[shown].cpu(), curve.risk[shown].sqrt().cpu(), label="least spread kept first")
    axes.axhline(float(curve.risk[-1]) ** 0.5, color="grey", linestyle="--", label="all of them")
    axes.set(xlabel="predictions kept, %", ylabel="RMSE of those")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description="Error of the predictions that are kept, by how many are kept.")
    parser.add_argument("--data", help="folder with scale_data.tar.gz; without it reviews are made up")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--reviews", type=int, default=1500, help="how many are made up")
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--samples", type=int, default=50, help="draws per prediction")
    parser.add_argument("--plot", help="draw the curve into this file")
    options = parser.parse_args()
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    length = 200 if options.data else 32
    found = reviews.read(options.data) if options.data else made_up(options.reviews)
    parts = reviews.cut(found, length=length).to(torch.device(device))

    rates = {"word_dropout": 0.25, "input_dropout": 0.25, "recurrent_dropout": 0.25, "output_dropout": 0.25}
    settings = Model(embedding=options.units, hidden=options.units, **rates)
    model = RatingModel(len(parts.words), settings, length=length)
    train(model.to(device), parts.train, parts.mean, parts.sd, options.epochs)

    prediction = br.predict(model, parts.test.tokens, samples=options.samples, seed=1, batch_dim=1)
    ratings = parts.mean + parts.sd * prediction.mean[:, 0]
    spread = parts.sd * prediction.epistemic[:, 0].sqrt()
    losses = (ratings - parts.test.ratings).square()
    curve = br.uncertainty.risk_coverage(spread, losses)
    print("\n kept   RMSE of those")
    for kept in (1.0, 0.8, 0.6, 0.4, 0.2):
        print(f"{kept:5.0%}   {curve.risk_at(kept) ** 0.5:.3f}")
    print(f"\n{compare(curve, losses)}")
    if options.plot:
        plot(curve, options.plot)


if __name__ == "__main__":
    main()
