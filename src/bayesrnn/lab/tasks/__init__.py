"""Tasks, one folder each: data, model, metrics, evaluation, commands, report sections and recipes."""
