import pytest
import torch

from bayesrnn.lab.tasks.language.pruning_plot import picture


@pytest.mark.parametrize(("values", "label"), [((58.7, 58.5), ""), ((80.0, 3000.0), " (log scale)")])
def test_a_run_s_own_pruning_picture(values, label, monkeypatch):
    """Plain numbers on the axis, whether it spans a percent or a factor of forty."""
    from matplotlib.figure import Figure

    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: saved.append(figure))
    rows = [{"fraction": k / 2, "valid_perplexity": value} for k, value in enumerate(values)]
    kept = {f"rnn.{name}": torch.ones(8, 3, dtype=torch.bool) for name in ("weight_ih_l0", "1.weight_hh_l0")}
    picture(rows, {**kept, "embed.weight": torch.ones(2, 2)})
    curve, *cells = saved[0].axes
    saved[0].canvas.draw()
    assert curve.get_ylabel() == f"validation perplexity{label}"
    shown = [t.get_text() for t in curve.get_yticklabels()]
    assert len(shown) >= 3
    assert all(float(text.replace(",", "")) > 0 for text in shown)
    assert [cell.get_title() for cell in cells] == ["weight_ih_l0: 100% left", "1.weight_hh_l0: 100% left"]
    assert curve.get_legend() is None
    picture(rows, {}, [{"fraction": 0.5, "valid_perplexity": values[0]}])
    (curve,) = saved[1].axes
    assert [t.get_text() for t in curve.get_legend().get_texts()] == ["removed", "removed, the rest trained again"]
