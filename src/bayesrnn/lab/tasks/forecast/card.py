"""What the card of a forecast says."""

from bayesrnn.lab.cards import Card

CARD = Card(
    pipeline="time-series-forecasting",
    inputs="`model.networks` are the networks. Each takes patches (T, B, F), what is known of the window (B, K) and of "
    "each step ahead (B, H, C), and returns parameters (B, H, size) of a distribution of the errors of a linear "
    "forecast, whose numbers are buffers of the model. The series itself is not part of this folder.",
    example="""
plan = json.loads((folder / "plan.json").read_text("utf-8"))
network, sizes = model.networks[0], plan["members"][0]["sizes"]
horizon = plan["settings"]["horizon"]
inputs = torch.zeros(14, 1, sizes[0]), torch.zeros(1, sizes[1]), torch.zeros(1, horizon, sizes[2])
draws = []
for seed in range(32):
    with br.draw(network, seed=seed), torch.no_grad():
        draws.append(network(*inputs))
print(torch.stack(draws).mean(0), torch.stack(draws).std(0))
""",
    use="Forecasts of the series it was trained on, with intervals that separate noise from doubt about the weights.",
    limits="Breaks, new seasons and other series are outside of what its intervals cover.",
    uncertainty=("_crps", "coverage", "width", "epistemic"),
    reading="CRPS is in the unit of the series; lower is better. Coverage is the share of values inside the intervals; "
    "it should equal their level, named below. The epistemic share is the part of the variance that more data would "
    "reduce.",
)
