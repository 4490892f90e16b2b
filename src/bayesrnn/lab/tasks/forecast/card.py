"""What the card of a forecast says."""

from bayesrnn.lab.cards import Card

CARD = Card(
    pipeline="time-series-forecasting",
    inputs="The module takes windows (T, B, F), scaled as `frame.json` describes, and returns (B, H, 2): mean and log "
    "standard deviation of H steps ahead, in the same scale. The series itself is not part of this folder.",
    example="""
plan = json.loads((folder / "frame.json").read_text("utf-8"))
frame = plan["frame"]
window = torch.zeros(frame["window"], 1, len(plan["columns"]) * (1 + frame["masked"]))
draws = []
for seed in range(32):
    with br.draw(model, seed=seed), torch.no_grad():
        draws.append(model(window))
mean, log_sigma = torch.stack(draws).unbind(-1)  # of 32 draws
print(mean.mean(0), mean.std(0), log_sigma.exp().mean(0))
""",
    use="Forecasts of the series it was trained on, with intervals that separate noise from doubt about the weights.",
    limits="It has seen one series. Breaks, new seasons and other series are outside of what its intervals cover.",
    uncertainty=("_crps", "coverage", "width", "nll", "epistemic"),
    reading="CRPS is in the unit of the series; lower is better. Coverage is the share of values inside the intervals; "
    "it should equal their level, named below. The epistemic share is the part of the variance that more data would "
    "reduce.",
)
