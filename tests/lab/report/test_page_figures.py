"""Pictures, colours, names and numbers of a report's page, whatever the records hold."""

import math

import pytest

from bayesrnn.lab.report import html, labels, plots, sections
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.language.task import Language


def test_names_are_no_formulas():
    assert plots.curves({r"a $\frac$": [[1.0, 2.0]]}, label="$x_{$").startswith(b"\x89PNG")
    assert plots.lines({"日本": [(1.0, 2.0)]}, across="x", up="y").startswith(b"\x89PNG")  # nor is there a warning
    assert plots.lines({"$x_{$": [(1.0, 2.0)]}, across="$_$", up="^$").startswith(b"\x89PNG")


def test_more_runs_than_colours_are_still_told_apart():
    names = [f"run {k}" for k in range(30)]
    looks = [plots.look(name, dict.fromkeys(names), names) for name in names]
    assert len({(look["color"], str(look["linestyle"]), look["marker"]) for look in looks}) == 30
    for a in looks:
        for b in looks:
            if a is not b and a["color"] == b["color"]:
                assert a["linestyle"] != b["linestyle"]


UNSHOWN = ([1e308, -1e308], [1.7e308, 2.0, 3.0], [1e308, 1.0], [5e-324, 1e300, 1e-300], [1e30, -1e30], [math.nan])


@pytest.mark.parametrize("numbers", UNSHOWN, ids=str)
def test_what_no_picture_can_show_is_a_gap(numbers):
    """Nor is there a warning, which would be an error here."""
    count = len(numbers)
    pairs = list(zip(numbers, numbers[::-1], strict=True))
    made = [
        plots.curves({"a": [numbers, [2.0, 1.0]]}, label="x", best="the lowest"),
        plots.against_diagonal({"a": pairs}, across="x", up="y", sizes={"a": numbers}),
        plots.lines({"a": pairs}, across="x", up="y", levels={"b": numbers[0]}, ticks=numbers, log_y=True),
        plots.histogram({"a": ([k / count for k in range(count + 1)], numbers)}, across="x", up="y"),
    ]
    assert all(png.startswith(b"\x89PNG") for png in made)


def test_sizes_that_are_shown():
    assert [plots.shown(v) for v in (0.0, -2.5, 1e30, 1e-30, 1e-31)] == [0.0, -2.5, 1e30, 1e-30, 0.0]
    assert all(math.isnan(plots.shown(v)) for v in (1.1e30, -1e308, math.inf, math.nan))
    assert plots._pairs([(1.0, 1e40), (1e40, 1.0), (2.0, 3.0)])[0] == [1.0, 2.0]
    assert labels.number(1e308) == "1e+308"


def test_legends_and_names_have_an_end():
    png = plots.curves({f"run {k}": [[1.0, 2.0]] for k in range(400)}, label="x" * 5000)
    assert int.from_bytes(png[20:24]) < 2000  # pixels of height
    assert plots.lines({"a\n" * 50: [(1.0, 2.0)]}, across="x\n" * 50, up="y").startswith(b"\x89PNG")


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_apart_by_everyone():
    """WCAG: 3:1 for lines, 4.5:1 for text. Colour blindness by Viénot et al. (1999); distances in linear RGB."""
    for colour in plots.COLOURS:
        assert contrast(colour, "#ffffff") >= 3
    for each, ink in ((html.LIGHT, html.INK["light"]), (html.DARK, html.INK["dark"])):
        assert all(contrast(shade, ink) >= 4.5 for shade in each)
    deutan = ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1))
    protan = ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1))

    def seen(colour, matrix):
        rgb = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
        return [max(0.0, sum(m * c for m, c in zip(row, rgb, strict=True))) ** (1 / 2.2) for row in matrix]

    first = plots.COLOURS[:4]
    for matrix in (deutan, protan):
        for i, a in enumerate(first):
            for b in first[:i]:
                assert math.dist(seen(a, matrix), seen(b, matrix)) > 0.1, (a, b)
    looks = [(c, s, m) for c, s, m in zip(plots.COLOURS, plots.STYLES, plots.MARKERS, strict=True)]
    assert len({m for _, _, m in looks}) == len({str(s) for _, s, _ in looks}) == 6  # nor by colour alone


def test_names_break_after_marks_and_numbers_do_not():
    assert html.breakable("p (train.lr=0.5, save_every)") == "p (train.<wbr>lr=<wbr>0.5, save_<wbr>every)"
    assert html.breakable("<b>") == "&lt;b&gt;"


def test_figures_of_draws_that_drop_words_are_not_compared():
    """They are folded below the others; the number of words in captions is not one of them."""
    shown = ("test_perplexity_mc", "test_mutual_information", "test_words")
    folded = ("test_perplexity_mc_words", "test_mutual_information_words", "draws_seed_words")
    order, hidden = [m.key for m in Language.metrics], {m.key for m in Language.details}
    assert [sections._is_main(key, order, hidden) for key in (*shown, *folded)] == [True] * 3 + [False] * 3


def test_words_for_names_and_numbers():
    assert labels.label("valid_perplexity_mc", "language") == "validation perplexity, averaged over draws"
    assert labels.label("end.test_rmse", "sentiment") == "after the last epoch: test RMSE"
    assert labels.label("test_error_mc", "digits") == "test error in %, averaged over draws"
    assert labels.label("entropy_gap_mean", "language") == "entropy gap, posterior mean"
    assert labels.label("test_perplexity_mc_words", "language").endswith("averaged over draws that drop words")
    assert labels.label("entropy_gap_words", "language") == "entropy gap, average of draws that drop words"
    assert labels.label("entropy_gap_1_words", "language") == "entropy gap, one of the draws that drop words"
    assert labels.label("draws_seed_words", "language") == "draws seed, draws that drop words"
    assert labels.label("test_words") == "test words"
    assert labels.label("kl_per_sequence") == "KL per sequence"
    assert [labels.number(v) for v in (78.8, 3.0, 12_345.6, 0.12345, math.inf)] == \
        ["78.80", "3", "12,346", "0.1235", "inf"]  # fmt: skip
    assert labels.mean([1.5]) == "1.5"
    assert labels.mean([2.0, 2.0]) == "2"
    assert labels.mean([0.2386, 0.2394]) == "0.2390 ± 0.0006"  # as many decimals, also where the last is a zero
    assert labels.mean([1e-9, 3e-9]) == "2e-09 ± 1.414e-09"
    assert labels.value("test_coverage", [0.93, 0.95]) == "94.0% ± 1.4%"
    assert labels.value("epistemic_share", [0.25]) == "25.0%"
    assert labels.value("test_crps", [0.25]) == labels.value("coverage", [25.0])[:2].replace("25", "0.25")
    assert Record(metrics={"a": 1, "b": True, "c": {"d": 2.5, "e": [1]}, "f": "x"}).scalars() == {"a": 1.0, "c.d": 2.5}
