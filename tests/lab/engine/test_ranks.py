"""Several processes: first their arithmetic, rank after rank in one process; then real ones, started by torchrun."""

import copy
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import typer
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from bayesrnn.errors import AlreadyTold, UserError
from bayesrnn.lab.console.errors import one_line
from bayesrnn.lab.engine import ranks
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.loop import Run
from bayesrnn.lab.engine.ranks import Ranks, Share, end, seed_of
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.tasks.base import task_class

WORKER = Path(__file__).with_name("ranks_worker.py")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def worker():
    from bayesrnn.lab.tasks.base import TASKS

    spec = importlib.util.spec_from_file_location("ranks_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ranks_worker"] = module
    spec.loader.exec_module(module)
    yield module
    del TASKS["labels"], sys.modules["ranks_worker"]


@pytest.fixture(scope="module")
def text(text_folder, worker, tmp_path_factory):
    folder = shutil.copytree(text_folder, tmp_path_factory.mktemp("ranks") / "text")
    (folder / "labels.yaml").write_text(worker.RECIPE)
    return folder


def made(worker, text, case, extra=(), rank=0, count=1):
    """A step of a case, on one of so many ranks that cannot hear each other."""
    name, overrides = worker.CASES[case]
    name = str(text / name) if name.endswith(".yaml") else name
    recipe = override(load(name), [*overrides, *extra])
    task = task_class(recipe.task)(recipe, None if recipe.task == "labels" else str(text), CPU)
    here = Ranks(rank, count)
    if here.several:
        task.split(here.rows(task.batch_size))
    torch.manual_seed(3)
    task.attach(task.build(recipe, task.files()).train())
    return Step(task, recipe.train, eta_clip=recipe.posterior.eta_clip, ranks=here)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("case", "extra"),
    [
        ("plain", []),
        ("bbb", []),
        ("bbb", ["carry_state=false", "prior=normal"]),
        ("variational", []),
        ("variational", ["tied_masks=false", "layers=2", "cell_dropout=0.2"]),
        ("variational", ["weight_dropout=0.3"]),
        ("labels", []),
        ("labels", ["kind=none"]),
    ],
)
def test_the_parts_of_a_batch_average_to_the_whole(worker, text, case, extra, count):
    whole = made(worker, text, case, extra)
    parts = [made(worker, text, case, extra, rank, count) for rank in range(count)]
    for position in range(3):  # the carried states are parts of the whole's as well
        torch.manual_seed(position)
        expected = whole._gradients()
        found = []
        for part in parts:
            torch.manual_seed(position)  # one draw for all
            found.append([g.clone() for g in part._gradients()])
        for k, gradient in enumerate(expected):
            mean = torch.stack([gradients[k] for gradients in found]).mean(0)
            torch.testing.assert_close(mean, gradient, rtol=1e-5, atol=1e-6)
        for k, state in enumerate(whole.state):
            torch.testing.assert_close(torch.cat([p.state[k] for p in parts], 1), state, rtol=1e-5, atol=1e-6)
    totals = torch.stack([part.totals for part in parts])
    for key, value in whole.read_totals().items():
        column = totals[:, ["steps", "loss", "nll", "kl", "sharpening", "gradient_norm"].index(key)]
        if key != "gradient_norm":
            merged = column.sum() if key in ("nll", "sharpening") else column.mean()
            assert float(merged) / (1 if key == "steps" else 3) == pytest.approx(value, rel=1e-5)


def test_draws_of_their_own_are_averaged_and_the_kl_counts_once(worker, text):
    parts = [made(worker, text, "own", rank=rank, count=2) for rank in range(2)]
    for rank, part in enumerate(parts):
        torch.manual_seed(seed_of(1, rank))
        part._gradients()
    losses, nlls, kls = torch.stack([part.totals for part in parts])[:, 1:4].T
    assert kls[0] != kls[1]
    steps, rows = parts[0].task.steps, 8
    expected = nlls.sum() / rows + kls.mean() / (rows * steps)  # arXiv 1704.02798, of the whole batch
    assert float(losses.mean()) == pytest.approx(float(expected), rel=1e-6)


def test_a_share_is_the_rows_of_one_draw():
    from bayesrnn.draws import FRESH, Noise

    noise, like = Noise(0.5), torch.zeros(())
    for sample in (
        lambda source, rows: source.units("a", noise, (3,), like, rows=rows),
        lambda source, rows: source.steps("a", noise, (rows, 2, 3), like, batch_dim=0),
    ):
        torch.manual_seed(0)
        whole = sample(FRESH, 6)
        found = []
        for rank in range(3):
            torch.manual_seed(0)
            found.append(sample(Share(Ranks(rank, 3)), 2))
        assert torch.equal(torch.cat(found), whole)
    torch.manual_seed(0)
    shared = Share(Ranks(1, 2)).units("a", noise, (50,), like, rows=2, shared=True)
    torch.manual_seed(0)
    assert torch.equal(shared, FRESH.units("a", noise, (50,), like, rows=2, shared=True))
    torch.manual_seed(0)
    fixed = Share(Ranks(1, 2)).steps("a", noise, (50,), like, batch_dim=None)
    assert torch.equal(fixed, shared)


def test_what_cannot_be_shared_is_said(worker, text, line_recipe):
    with pytest.raises(UserError, match="Batches of 8 cannot be shared equally by 3 processes"):
        Ranks(0, 3).rows(8)
    assert [Ranks(rank, 2).rows(8) for rank in range(2)] == [slice(0, 4), slice(4, 8)]
    cases = {
        "sharpened": "sharpened weights depend on each process's own rows",
        "zaremba": r"step_drop is a noise layer of torch",
    }
    for case, message in cases.items():
        name = {"sharpened": "brnn-sharpened-medium", "zaremba": "zaremba-medium"}[case]
        recipe = override(load(name), [*worker.LANGUAGE, "shared_draw=true"])
        task = task_class("language")(recipe, str(text), CPU)
        task.split(slice(0, 4))
        with pytest.raises(UserError, match=message):
            Run(task, seed=1, folder=None, reporter=worker.Quiet(), ranks=Ranks(1, 2))
    task = task_class("line")(load(line_recipe), None, CPU)
    del task.minibatches
    with pytest.raises(UserError, match="A line run cannot be shared by several processes"):
        task.split(slice(0, 4))


def test_seeds_of_ranks_are_their_own():
    seeds = {seed_of(seed, rank) for seed in range(50) for rank in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_alone_nothing_is_sent(monkeypatch):
    for variable in ("TORCHELASTIC_RUN_ID", "SLURM_NNODES"):
        monkeypatch.delenv(variable, raising=False)
    alone = ranks.join("cpu", 1)
    tensor = torch.arange(3.0)
    assert (alone.count, alone.first, alone.several, alone.device) == (1, True, False, "cpu")
    assert alone.average(tensor) is tensor
    assert alone.gather({"a": tensor}) == [{"a": tensor}]
    assert alone.from_first(lambda: 1) == alone.together(lambda: 1) == 1
    alone.check_same([tensor])
    alone.leave()


def test_bad_devices(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(UserError, match="choose --device cpu or cuda, not cuda:1"):
        ranks.join("cuda:1", 2)
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(UserError, match=r"pip install 'bayesrnn\[distributed\]'"):
        ranks.join("cpu", 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with pytest.raises(UserError, match="omit --devices"):
        ranks.join("cpu", 2)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="There are 0 GPUs here, too few for process 1"):
            ranks._own_device("cuda", 1)


def test_messages_between_ranks(monkeypatch):
    """Rank 1's side of the exchange, with what rank 0 says given."""

    def broadcast(box, src, device):
        box[:] = said

    def gathered(found, own):
        found[:] = said

    monkeypatch.setattr(ranks.dist, "broadcast_object_list", broadcast)
    monkeypatch.setattr(ranks.dist, "all_gather_object", gathered)
    second = Ranks(1, 2)
    said = [{"a": 1}, None]
    assert second.from_first(lambda: pytest.fail("not here")) == {"a": 1}
    said = [None, "The disk is full."]
    with pytest.raises(AlreadyTold, match="The disk is full"):
        second.from_first(dict)
    said = ["No such folder.", None]
    with pytest.raises(AlreadyTold, match="No such folder"):
        second.together(dict)
    said = [None, "No such folder."]
    with pytest.raises(UserError, match="No such folder") as error:
        second.together(dict)
    assert not isinstance(error.value, AlreadyTold)

    def lost(tensor):
        raise RuntimeError("[/gloo/pair.cc:537] Connection closed by peer. This is because\nof …")

    monkeypatch.setattr(ranks.dist, "all_reduce", lost)
    with pytest.raises(UserError, match=r"Another process .* has ended \(Connection closed by peer\)") as error:
        second.sum(torch.zeros(2))
    assert "\n" not in str(error.value)


def test_weights_that_drift_apart_end_the_run(monkeypatch):
    monkeypatch.setattr(ranks.dist, "all_gather_object", lambda found, own: None)
    here, weights = Ranks(0, 2), [torch.randn(5), torch.randn(3, dtype=torch.float64), torch.randn(2).bfloat16()]
    other = copy.deepcopy(weights)

    def all_reduce(tensor):
        tensor += torch.stack([w.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[w.element_size()]).sum()
                               for w in other])  # fmt: skip

    monkeypatch.setattr(ranks.dist, "all_reduce", all_reduce)
    here.check_same(weights)
    other[0][2] = torch.nextafter(other[0][2], torch.tensor(9.0))
    with pytest.raises(UserError, match="processes hold different weights"):
        here.check_same(weights)


class Twins(Ranks):
    """Rank 0 of two that have the same rows: what the other one sends is what this one has."""

    def sum(self, tensor):
        return tensor.mul_(2)


GPU = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("extra", [["optimizer=adam", "lr=0.01"], ["clip=0.1", "average_from=1"]])
def test_a_step_in_pieces_is_a_step(worker, text, device, extra):
    """On CUDA: two graphs with the exchange between them."""
    found = {}
    overrides = [*worker.LANGUAGE, "precision=fp32", "batch_size=4", *extra]
    for kind in ("alone", "eager", "recorded"):
        recipe = override(load("brnn-medium"), overrides)
        task = task_class("language")(recipe, str(text), torch.device(device))
        torch.manual_seed(3)
        task.attach(task.build(recipe, task.files()).to(device).train())
        here = Ranks() if kind == "alone" else Twins(0, 2)
        step = Step(task, recipe.train, graph=kind != "eager", ranks=here)
        assert (step.graph is not None) == (kind != "eager" and device == "cuda"), step.reason
        torch.manual_seed(5)
        step.lr.fill_(0.1)
        for _ in range(5):
            step()
        found[kind] = [p.detach().clone() for p in step.params], step.read_totals()
    for kind in ("eager", "recorded"):
        for ours, theirs in zip(found[kind][0], found["alone"][0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        ours, theirs = dict(found[kind][1]), dict(found["alone"][1])
        assert ours.pop("nll") == pytest.approx(2 * theirs.pop("nll"), rel=1e-4)  # of both
        assert ours == pytest.approx(theirs, rel=1e-4)


class Told:
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    def step(self, progress):
        pass

    def epoch(self, line, epochs):
        pass


def test_a_run_started_again_goes_on(line_recipe, tmp_path, monkeypatch):
    """As torchrun starts it: the same command, told only by its environment that it is not the first time."""
    monkeypatch.setattr("bayesrnn.lab.engine.loop._LOOK_EVERY", 1)

    def run(out, told=None, **kwargs):
        options = {"reporter": told or Told(), "overrides": ["save_every=3"], "device": "cpu"}
        return launch(line_recipe, out=tmp_path / out, **options, **kwargs)

    whole = run("whole", ranks=Ranks(launch="whole"))

    class Killed(Told):
        def step(self, progress):
            if progress.epoch == 2 and progress.step == 5:
                raise KeyboardInterrupt

    for out, again in (("a", Ranks(launch="a", restarted=True)), ("b", Ranks(launch="b"))):
        with pytest.raises(KeyboardInterrupt):
            run(out, Killed(), ranks=Ranks(launch=again.launch), force=True)
        for other in (Ranks(launch="another"), Ranks(launch="another", restarted=True), Ranks(restarted=True)):
            with pytest.raises(UserError, match="holds an unfinished run"):
                run(out, ranks=other)
        told = Told()
        assert run(out, told, ranks=again, force=True).curves == whole.curves
        assert "Resumed in epoch 2, after step 3." in told.said
    ours = Ranks(launch="a", restarted=True)
    assert run("a", ranks=ours).curves == whole.curves  # it was over when it was started again
    for other in (Ranks(launch="a"), Ranks(launch="another", restarted=True), Ranks(restarted=True)):
        with pytest.raises(UserError, match="already holds a finished run"):
            run("a", ranks=other)


def test_one_torchrun_of_those_that_began_is_enough(line_recipe, tmp_path, monkeypatch):
    """Of two machines one is exchanged, and rank 0 is now another process."""
    monkeypatch.setattr("bayesrnn.lab.engine.loop._LOOK_EVERY", 1)

    class Machines(Ranks):
        def __init__(self, *names):
            super().__init__(launch=names[0])
            self.names = names

        def everyone(self, own):
            return list(self.names) if own == self.launch else super().everyone(own)

    class Killed(Told):
        def step(self, progress):
            raise KeyboardInterrupt

    def run(told, *names):
        launch(line_recipe, out=tmp_path / "r", reporter=told, device="cpu", ranks=Machines(*names))

    for names in (("a", "b"), ("c", "b"), ("d", "c")):
        with pytest.raises(KeyboardInterrupt):
            run(Killed(), *names)
    with pytest.raises(UserError, match="holds an unfinished run"):
        run(Told(), "a", "b")
    run(Told(), "d", "e")


def test_a_torchrun_has_a_word_of_its_own(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job\nof two lines")
    own = ranks._starter()
    assert own == ranks._starter()
    assert len(own.split()) == 1
    monkeypatch.setattr(os, "getppid", lambda: 2**30)  # there is none
    other = ranks._starter()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert len({own, other, ranks._starter()}) == 3


def test_ranks_that_read_other_data(monkeypatch):
    said = ["a", "b", "a", "c"]

    def gathered(found, own):
        assert own == said[here.rank]
        found[:] = said

    monkeypatch.setattr(ranks.dist, "all_gather_object", gathered)
    for rank in range(4):
        here = Ranks(rank, 4)
        with pytest.raises(UserError, match=r"data in text are not the same everywhere: processes 1, 3 of 4") as error:
            here.check_data(said[rank], "text")
        assert isinstance(error.value, AlreadyTold) == (rank > 0)
    said = ["a"] * 4
    here.check_data("a", "text")
    Ranks().check_data("a", "text")


def torchrun(*arguments, count, restarts=0):
    options = ["--standalone", "--nproc-per-node", str(count), "--max-restarts", str(restarts)]
    return [sys.executable, "-m", "torch.distributed.run", *options, *map(str, arguments)]


@pytest.fixture(scope="module")
def sessions(worker, text, tmp_path_factory):
    """All cases trained by one process or by two; made when asked for."""
    out = tmp_path_factory.mktemp("sessions")

    def session(count):
        folder = out / str(count)
        if folder.exists():
            return folder
        folder.mkdir()
        if count == 1:
            for case in worker.CASES:
                worker.train(case, folder, text, device="cpu")
        else:
            subprocess.run(torchrun(WORKER, folder, text, count=count), check=True, capture_output=True)
        return folder

    return session


def tensors(folder, name):
    return checkpoint.load(folder / name)


def record(folder):
    return json.loads((folder / "record.json").read_text())


@pytest.mark.slow
def test_several_processes_with_one_draw_are_one_process(worker, sessions):
    one, several = sessions(1), sessions(2)
    for case, (_, overrides) in worker.CASES.items():
        if "shared_draw=true" not in overrides:
            continue
        for file in (checkpoint.LAST, checkpoint.BEST):
            theirs, ours = tensors(one / case, file)[0], tensors(several / case, file)[0]
            for key, expected in theirs.items():
                if key.startswith(("model.", "step.task")):
                    torch.testing.assert_close(ours[key], expected, rtol=1e-5, atol=1e-5)
        a, b = record(one / case)["curves"], record(several / case)["curves"]
        assert a.keys() == b.keys()
        for key, curve in a.items():
            assert b[key] == pytest.approx(curve, rel=1e-4), (case, key)


@pytest.mark.slow
def test_the_checkpoint_holds_every_process(worker, sessions):
    count = 2
    folder = sessions(count)
    for case in worker.CASES:
        assert record(folder / case)["ranks"] == count
        assert not [p.name for p in (folder / case).iterdir() if p.name.startswith(".")]
    found, about = tensors(folder / "own", checkpoint.LAST)
    assert about["ranks"] == count
    states, noises = [], []
    for rank in range(count):
        prefix = f"rank{rank}." if rank else ""
        states.append(found[f"{prefix}step.state.0"])
        noises.append(found[f"{prefix}rng.cpu"])
        assert states[-1].shape == (1, 8 // count, 6)
    assert all(not torch.equal(a, b) for i, a in enumerate(noises) for b in noises[:i])
    assert all(not torch.equal(a, b) for i, a in enumerate(states) for b in states[:i])
    shared, _ = tensors(folder / "bbb", checkpoint.LAST)
    assert torch.equal(shared["rng.cpu"], shared["rank1.rng.cpu"])


@pytest.mark.slow
def test_own_draws_train_as_well(sessions):
    one, two = (record(sessions(count) / "own")["curves"]["valid_perplexity"] for count in (1, 2))
    assert one != two
    assert two[-1] < 14
    assert two[-1] == pytest.approx(one[-1], rel=0.15)


@pytest.mark.slow
def test_another_number_of_processes_cannot_go_on(worker, text, sessions, tmp_path):
    out = shutil.copytree(sessions(2) / "own", tmp_path / "own")
    (out / "record.json").unlink()
    (out / ".unfinished").write_text("1\n")
    with pytest.raises(UserError, match=r"was written by 2 processes, not 1; resume with as many"):
        worker.train("own", tmp_path, text, device="cpu", resume=True)


def workers(parent):
    """Process ids by rank of what torchrun has started."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) != parent:
                continue
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"RANK="):
                found[int(variable[5:])] = int(folder.name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes in /proc")
def test_killed_processes_are_started_again_and_nothing_is_lost(worker, text, sessions, tmp_path):
    """kill -9 of the rank that writes, in mid-epoch; torchrun starts both again; the end is as if undisturbed.

    The other rank is killed in :func:`test_two_torchruns_of_one_job`.
    """
    name, overrides = worker.CASES["own"]
    out, log = tmp_path / "own", tmp_path / "log"
    arguments = ["-m", "bayesrnn", "train", name, "--data", text, "--out", out, "--device", "cpu", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(log, "w") as file:
        process = subprocess.Popen(torchrun(*arguments, count=2, restarts=1), stdout=file, stderr=file, env=environment)
        deadline = time.monotonic() + 120
        while process.poll() is None and not (out / checkpoint.LAST).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        assert process.wait(timeout=240) == 0, log.read_text()
    assert log.read_text().count("Resumed in epoch") == 1
    undisturbed = sessions(2) / "own"
    assert record(out)["curves"] == record(undisturbed)["curves"]
    assert record(out)["metrics"]["test_perplexity"] == record(undisturbed)["metrics"]["test_perplexity"]
    for file in (checkpoint.LAST, checkpoint.BEST):
        ours, theirs = tensors(out, file)[0], tensors(undisturbed, file)[0]
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes in /proc")
def test_two_torchruns_of_one_job(worker, text, sessions, tmp_path):
    """As on two machines: one loses its process and counts a restart, the other only sees the group change."""
    name, overrides = worker.CASES["own"]
    out = tmp_path / "own"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2"]
    options += ["--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", place, "-m", "bayesrnn"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "train", name, "--data", str(text)]
    command += ["--out", str(out), "--device", "cpu", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    logs = [tmp_path / f"log{i}" for i in range(2)]
    with open(logs[0], "w") as one, open(logs[1], "w") as two:
        agents = [subprocess.Popen(command, stdout=log, stderr=log, env=environment) for log in (one, two)]
        deadline = time.monotonic() + 120
        while not (out / checkpoint.LAST).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        (victim,) = workers(agents[1].pid).values()
        os.kill(victim, signal.SIGKILL)
        assert [agent.wait(timeout=240) for agent in agents] == [0, 0]
    assert any("Resumed in epoch" in log.read_text() for log in logs)
    assert record(out)["curves"] == record(sessions(2) / "own")["curves"]


@pytest.mark.slow
def test_a_restart_does_not_take_another_runs_folder(worker, text, tmp_path):
    """torchrun tries again what was refused; the answer is the same."""
    name, overrides = worker.CASES["own"]
    out, finished = tmp_path / "own", shutil.copytree(text, tmp_path / "old-text")
    with pytest.raises(UserError):  # begins, and is stopped in its last epoch
        launch(name, out=out, reporter=Ending(), data=str(finished), overrides=overrides, device="cpu")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    arguments = ["-m", "bayesrnn", "train", name, "--data", text, "--out", out, "--device", "cpu", *overrides]
    done = subprocess.run(torchrun(*arguments, count=1, restarts=1), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.count("bayesrnn: ") >= 2
    assert done.stderr.count("holds an unfinished run") >= 2
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


class Ending(Told):
    def epoch(self, line, epochs):
        raise UserError("stop")


@pytest.mark.slow
def test_a_stale_copy_of_the_data_is_one_line(worker, text, tmp_path):
    """Each rank reads a folder of its own, under one name: as on two machines."""
    name, overrides = worker.CASES["own"]
    for rank in range(2):
        shutil.copytree(text, tmp_path / str(rank) / "text")
    file = tmp_path / "1" / "text" / "train.txt"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], *lines[2:]]) + "\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nos.chdir(os.path.join(sys.argv.pop(1), os.environ['RANK']))\n"
        "from bayesrnn.lab.cli import main\nmain()\n"
    )
    arguments = [script, tmp_path, "train", name, "--data", "text", "--out", tmp_path / "own", "--device", "cpu"]
    done = subprocess.run(
        torchrun(*arguments, *overrides, count=2), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    (said,) = [line for line in lines if line.startswith("bayesrnn: ")]
    assert "The data in text are not the same everywhere: process 1 of 2 read other data than process 0" in said
    assert lines[-2].endswith(f": {said}")  # torchrun's own report ends with it
    assert "exitcode  : 2" in done.stderr
    assert "SIGABRT" not in done.stderr
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
def test_devices_start_processes_through_fabric(worker, text, sessions, tmp_path):
    pytest.importorskip("lightning_fabric")
    name, overrides = worker.CASES["own"]
    command = [sys.executable, "-m", "bayesrnn", "train", name, "--data", text, "--out", tmp_path / "own",
               "--device", "cpu", "--devices", "2", *overrides]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(map(str, command), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 processes, 4 rows and a separate draw each." in done.stdout
    assert done.stdout.count("epoch 2/2") == 1
    assert record(tmp_path / "own")["curves"] == record(sessions(2) / "own")["curves"]  # the same as by torchrun


def test_the_end_of_one_of_several(monkeypatch, tmp_path, capfd):
    """It leaves its line where torchrun looks for it, and no destructors run: they would end it with SIGABRT."""
    report = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(report))
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)

    @one_line
    def command(error):
        raise error

    for error, kind in ((UserError("alone"), typer.Exit), (ZeroDivisionError("alone"), ZeroDivisionError)):
        with pytest.raises(kind):
            command(error)
    assert not statuses
    assert not report.exists()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(ZeroDivisionError):  # were it not for the test, the process would be gone
        command(ZeroDivisionError("a fault of ours"))
    assert "bayesrnn: ZeroDivisionError: a fault of ours" in report.read_text()
    assert "Traceback" in capfd.readouterr().err
    with pytest.raises(typer.Exit):
        command(UserError("among others"))
    assert statuses == [1, 2]
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(report))
    assert str(ChildFailedError("train", {0: failure})).splitlines()[-2].endswith(": bayesrnn: among others")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "none" / "error.json"))
    end("bayesrnn: it cannot be written", 3)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    end("bayesrnn: started by fabric", 4)
    assert statuses == [1, 2, 3, 4]


@pytest.mark.slow
def test_bad_input_is_one_line_through_fabric(tmp_path):
    pytest.importorskip("lightning_fabric")
    command = [sys.executable, "-m", "bayesrnn", "train", "brnn-medium", "--data", tmp_path / "none", "--device",
               "cpu", "--devices", "2"]  # fmt: skip
    done = subprocess.run(map(str, command), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is not a folder" in done.stderr
