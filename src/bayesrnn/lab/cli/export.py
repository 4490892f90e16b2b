"""``bayesrnn export``: a trained model's posterior mean for programs without bayesrnn."""

import inspect
import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn._version import __version__
from bayesrnn.errors import UserError
from bayesrnn.lab.console.errors import one_line

if TYPE_CHECKING:
    from torch import nn

    from bayesrnn.lab.runs.opening import OpenedRun

ENDINGS = {"torch": ".safetensors", "exported": ".pt2", "onnx": ".onnx"}


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    form: Annotated[str | None, typer.Option("--format", help="torch (the default), exported or onnx.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: model in the run folder.")] = None,
    pruned: Annotated[bool, typer.Option("--pruned", help="The weights that `bayesrnn prune` left.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the files.")] = False,
    hub: Annotated[
        Path | None, typer.Option(help="Folder for the whole posterior with a model card, as on the Hugging Face Hub.")
    ] = None,
) -> None:
    """Write the posterior mean as plain weights, a torch.export program or ONNX, and a JSON file that describes it.

    With --hub: the whole posterior, its configuration and a model card, which `br.load` opens.
    """
    from bayesrnn.lab.runs.files import check_free, write_file
    from bayesrnn.lab.runs.opening import read_config

    if hub is not None:
        if out is not None or form is not None:
            raise UserError("--hub writes a folder of its own; omit --out and --format.")
        from bayesrnn.lab import hub as cards

        trained, removed = _opened(run, pruned)
        cards.export(trained, hub, force=force, pruned=removed)
        opened = f"Open it with br.load({str(hub)!r}); read and complete its README.md."
        typer.echo(f"{trained.config['recipe']}: {hub}. {opened}{_unfinished(trained)}")
        return
    own = {ending: name for name, ending in ENDINGS.items()}.get(out.suffix.lower()) if out is not None else None
    if form in ENDINGS and own not in (None, form):
        raise UserError(f"{out} ends like a file of --format {own}, and --format is {form}; change one of the two.")
    form = form or own or "torch"
    if form not in ENDINGS:
        raise UserError(f"There is no format {form}; choose {', '.join(ENDINGS)}.")
    path = run / f"model{ENDINGS[form]}" if out is None else out
    if form == "exported" and path.suffix != ENDINGS[form]:
        better = path.parent / f"{path.stem}{ENDINGS[form]}"
        raise UserError(f"{path} must end in .pt2, or torch.export.load warns; choose --out {better}.")
    beside = path.with_name(path.name + ".json")
    read_config(run)  # before --force is advised: a folder of something else has such a file too
    for file in (path, beside):
        check_free(file, force=force)
    trained, removed = _opened(run, pruned)
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent}; make it, or choose another --out.")
    about, checked = write_export(trained, path, form)
    write_file(beside, json.dumps({**about, "pruned": removed}, indent=2) + "\n")
    count = sum(math.prod(shape) for shape in about["parameters"].values())
    unchecked = "" if checked else " Its numbers were not checked: onnxruntime is not installed."
    told = f"{path} and {beside}.{unchecked}{_unfinished(trained)}"
    typer.echo(f"{trained.config['recipe']}, {count:,} weights at the posterior mean: {told}")


def _unfinished(run: "OpenedRun") -> str:
    """A warning if the run goes on; empty: it has finished."""
    from bayesrnn.lab.runs.folder import MARKER

    if not (run.path / MARKER).exists():
        return ""
    return f" The run is not finished: these are the weights of epoch {run.epoch}; export again when it is."


def _opened(run: Path, pruned: bool) -> "tuple[OpenedRun, bool]":
    """The run, where ``pruned`` with the weights that are left; and whether weights were removed."""
    import torch

    from bayesrnn.lab.registry import task_class
    from bayesrnn.lab.runs import checkpoint
    from bayesrnn.lab.runs.opening import open_run

    trained = open_run(run, torch.device("cpu"))
    if pruned:
        file = run / "pruned.safetensors"
        task = trained.recipe.task
        if "prune" not in task_class(task).commands:
            raise UserError(f"--pruned is not for {task} runs, which cannot be pruned; omit it.")
        if not file.exists():
            raise UserError(f"{run} has no pruned weights; make them with `bayesrnn prune {run} --fraction F`.")
        again = f"make it again with `bayesrnn prune {run} --fraction F`"
        tensors, made = checkpoint.load_of(run, file.name, again)
        now = checkpoint.digest(run / checkpoint.BEST)
        if made.get("weights", now) != now:  # earlier versions did not say
            raise UserError(f"{file} was made of other weights than {checkpoint.BEST} has now; {again}.")
        checkpoint.load_model(trained.model, tensors, file)
    return trained, pruned or "pruned" in trained.config  # a run of its own that trained pruned weights on


def write_export(run: "OpenedRun", path: Path, form: str) -> tuple[dict[str, Any], bool]:
    """Write the file; returns its description, and whether its numbers were compared with the model's."""
    import torch

    from bayesrnn import export
    from bayesrnn.lab.registry import task_class
    from bayesrnn.lab.runs.files import write_file

    task = task_class(run.recipe.task)
    try:
        plain = export.to_torch(task.exported(run.model))
    except TypeError as error:
        raise UserError(f"{str(error).split(':')[0]}; use --hub, which writes a folder for br.load.") from None
    about = description(run, plain)
    if form == "torch":
        from safetensors.torch import save

        # each tied weight once: the format has no shared memory
        own = {n: p.detach().contiguous() for n, p in plain.state_dict().items() if n not in about["tied"]}
        write_file(path, save(own, metadata={"format": "pt"}))
        return about, True
    called = task.signature(run)
    about |= called.described()
    if form == "exported":
        program = export.to_exported(called.model, called.inputs, dynamic_shapes=called.dynamic_shapes())
        archive = io.BytesIO()  # torch's own writer of files ends the process where the disk is full
        torch.export.save(program, archive)
        write_file(path, archive.getbuffer())
        return about, True
    names = {"input_names": called.input_names, "output_names": called.output_names}
    shapes = called.dynamic_shapes()
    try:
        checked = export.to_onnx(called.model, path, called.inputs, **names, dynamic_shapes=shapes)  # type: ignore[arg-type]
    except ImportError as error:
        raise UserError(f"{error}.") from None
    except TypeError as error:
        raise UserError(f"{error}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).") from None
    return about, checked


def description(run: "OpenedRun", plain: "nn.Module") -> dict[str, Any]:
    """What the weights belong to: layers with their arguments, shapes, ties, and the files of the run's data."""
    names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in plain.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if first != name:
            tied[name] = first
    return {
        "written_by": f"bayesrnn {__version__}",
        "recipe": run.config["recipe"],
        "epoch": run.epoch,
        "task": run.recipe.task,
        "layers": {n: _layer(m) for n, m in plain.named_modules() if not list(m.children())},
        "parameters": {n: list(p.shape) for n, p in plain.state_dict().items() if n not in tied},
        "tied": tied,
        "files": {n: _lines(content) for n, content in run.files.items()},
    }


def _layer(module: "nn.Module") -> dict[str, Any]:
    """The layer's torch class and the arguments that make another like it."""
    from torch import nn

    recurrent = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
    if isinstance(module, nn.RNNBase):
        more = {"LSTM": ["proj_size"], "GRU": [], "RNN": ["nonlinearity"]}[type(module).__name__]
        arguments = {key: getattr(module, key) for key in recurrent + more}
    else:
        parameters = inspect.signature(type(module).__init__).parameters
        arguments = {key: value for key, value in vars(module).items() if key in parameters}
        if "bias" in parameters:
            arguments["bias"] = "bias" in dict(module.named_parameters(recurse=False))
    plain = (bool, int, float, str, type(None), tuple, list)
    return {
        "type": f"torch.nn.{type(module).__name__}" if type(module).__module__.startswith("torch.nn.") else "",
        "arguments": {k: v for k, v in arguments.items() if isinstance(v, plain)},
    }


def _lines(content: bytes) -> Any:
    """A text file as its lines; a JSON file as what it says."""
    text = content.decode("utf-8", errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")
