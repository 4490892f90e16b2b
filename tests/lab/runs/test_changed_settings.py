from bayesrnn.lab import recipes
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.language.paper_tables import other_text


def changed_settings(values, recipe=None):
    return Record.model_validate(values).changed_settings(recipe)


def record(recipe="caption-bbb", **sections):
    """With these settings, and in their sections the recipe's others."""
    now = recipes.load(recipe)
    settings = {name: {**vars(getattr(now, name)), **given} for name, given in sections.items()}
    return {"recipe": recipe, "overrides": ["train.lr=9"], "settings": settings}


def test_what_differs_from_the_recipe_now_whatever_the_overrides_were():
    now = recipes.load("caption-bbb")
    same = {"model": {"hidden": now.model.hidden}, "train": {"lr": now.train.lr, "clip": now.train.clip}}
    assert changed_settings(record(**same)) == []
    other = {"model": {"hidden": 7, "tied": True}, "train": {"lr": 0.002, "clip": None}}
    assert sorted(changed_settings(record(**other))) == [
        "model.hidden=7",
        "model.tied=true",
        "train.clip=null",
        "train.lr=0.002",
    ]


def test_other_sections_and_unknown_settings_are_left_out():
    assert changed_settings(record(evaluate={"samples": 7}, train={"gone": 3}, paper={"row": "x"})) == []


def test_weights_that_were_taken_away_are_named_first():
    made = {**record(train={"lr": 0.002}), "pruned": {"fraction": 0.8, "steps": 2}}
    assert changed_settings(made) == ["pruned=0.8", "train.lr=0.002"]


def test_nothing_to_compare_with():
    assert changed_settings({"recipe": "gone", "settings": {"train": {"lr": 9.0}}}) == []
    assert changed_settings({"recipe": "caption-bbb"}) == []
    assert changed_settings({"recipe": "caption-bbb", "settings": {"model": 3}}) == []


def test_what_is_shown_can_be_given_to_train():
    shown = changed_settings(record(model={"tied": True}, train={"lr": 0.002, "clip": None, "optimizer": "adam"}))
    made = recipes.override(recipes.load("caption-bbb"), shown)
    assert (made.model.tied, made.train.lr, made.train.clip, made.train.optimizer) == (True, 0.002, None, "adam")


def test_a_setting_that_did_not_exist_then():
    """It was at its default, whatever the recipe, or who asks, has now."""
    brnn = record("brnn-medium", model={})
    assert changed_settings(brnn) == []
    del brnn["settings"]["model"]["one_bias"]
    assert changed_settings(brnn) == ["model.one_bias=false"]
    old = record("moon-medium", model={})
    del old["settings"]["model"]["forget_bias"]
    assert changed_settings(old) == []
    wanted = recipes.override(recipes.load("moon-medium"), ["model.forget_bias=1"])
    assert changed_settings(old, wanted) == ["model.forget_bias=0.0"]


def test_a_recipe_in_place_of_its_name():
    wanted = recipes.override(recipes.load("brnn-medium"), ["hidden=8", "epochs=2"])
    made = {"recipe": "brnn-medium", "settings": {"model": vars(wanted.model), "train": vars(wanted.train)}}
    assert changed_settings(made, wanted) == []
    assert changed_settings(made) == ["model.hidden=8", "train.epochs=2"]


def test_texts_of_language_models():
    assert [other_text(Record(**made)) for made in ({"data": "ptb"}, {"data": "docs"}, {"data": None}, {})] == [
        "", "docs", "", ""
    ]  # fmt: skip
