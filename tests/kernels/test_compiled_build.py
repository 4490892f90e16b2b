"""How the C kernels are compiled, kept and refused, and what happens without them."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bayesrnn.kernels import cpu
from bayesrnn.kernels.cpu import build

SOURCE = Path(build.__file__).parent
USE = "import torch; from bayesrnn.kernels import cpu; print(cpu.library() is not None, '|', cpu.why_not())"


def python(code, **environment):
    """Runs code in a process of its own; None removes a variable."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    env = {k: v for k, v in env.items() if v is not None}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Nothing is loaded yet, and the cache folder is empty."""
    monkeypatch.delenv("BAYESRNN_COMPILE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_outcome", None)
    return tmp_path / "bayesrnn"


@pytest.fixture(scope="session")
def ready():
    """A file that was compiled before."""
    if cpu.why_not() is not None:
        pytest.skip(f"no compiled kernels: {cpu.why_not()}")
    return Path(cpu.library()._name)


@pytest.fixture
def compiler(ready, fresh, monkeypatch):
    """A stand-in for the compiler that gives what was compiled before, and counts its calls: compile, then link."""
    script, calls = fresh.parent / "compiler", fresh.parent / "calls"
    script.write_text(f'#!/bin/sh\necho call >> "{calls}"\nfor last; do :; done\nsleep 0.2\ncp "{ready}" "$last"\n')
    script.chmod(0o700)
    monkeypatch.setenv("CC", str(script))
    return lambda: len(calls.read_text().split()) if calls.exists() else 0


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("BAYESRNN_COMPILE", "0")
    assert cpu.library() is None
    assert cpu.why_not() == "BAYESRNN_COMPILE=0 switches them off"


@pytest.mark.slow
def test_nothing_is_compiled_or_written_at_import(tmp_path):
    python("import bayesrnn as br; br.LSTM; br.BayesByBackprop; br.kernels.cpu", XDG_CACHE_HOME=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_compiled_once_kept_and_private(compiler, fresh):
    assert cpu.library() is not None
    assert compiler() == 2
    (kept,) = fresh.glob("*.so")
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert {p.suffix for p in fresh.iterdir()} == {".so", ".lock"}  # no pieces are left behind
    build._outcome = None
    assert cpu.library() is not None
    assert compiler() == 2


@pytest.mark.slow
def test_processes_that_start_together_compile_once(compiler, fresh):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-c", USE], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [p.communicate()[0].strip() for p in running] == ["True | None"] * 2
    assert compiler() == 2


def test_another_source_flag_or_processor_is_another_file(monkeypatch):
    usual = build._key(["/bin/sh"], "/lib/libgomp.so")
    assert build._key(["/bin/sh"], "/lib/libgomp.so") == usual
    assert build._key(["/bin/sh", "-m32"], "/lib/libgomp.so") != usual
    assert build._key(["/bin/sh"], "/lib/libomp.so") != usual
    with monkeypatch.context() as patch:
        patch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
        assert build._key(["/bin/sh"], "/lib/libgomp.so") != usual
    with monkeypatch.context() as patch:
        patch.setattr(build, "_processor", lambda: ["another"])
        assert build._key(["/bin/sh"], "/lib/libgomp.so") != usual
    monkeypatch.setattr(build, "SOURCES", build.SOURCES[:-1])
    assert build._key(["/bin/sh"], "/lib/libgomp.so") != usual


@pytest.mark.slow
def test_without_a_compiler_the_reason_is_said_and_the_layers_run(tmp_path):
    code = """
        import torch, bayesrnn as br
        from bayesrnn.kernels import cpu
        layer = br.LSTM(3, 4, recurrent_dropout=0.5)
        layer(torch.randn(5, 2, 3))[0].sum().backward()
        q = br.BayesByBackprop(torch.nn.Linear(3, 2), prior=br.ScaleMixture(0.5, 1.0, 0.1))
        (q(torch.randn(4, 3)).sum() + br.kl(q)).backward()
        br.predict(q, torch.randn(4, 3), samples=3)
        print(br.kernels.path(), "|", cpu.why_not())
    """
    found = python(code, PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path), CC=None, BAYESRNN_COMPILE=None)
    assert found == "loop | no C compiler was found: neither cc, gcc nor clang"


@pytest.mark.parametrize(
    ("script", "reason"),
    [("echo first line >&2; echo second >&2; exit 3", "failed (exit 3): first line"), ("exit 1", "(exit 1): nothing")],
)
def test_a_compiler_that_fails_is_quoted(compiler, fresh, script, reason):
    Path(os.environ["CC"]).write_text(f"#!/bin/sh\n{script}\n")
    assert cpu.library() is None
    assert reason in cpu.why_not()
    assert list(fresh.glob("*.so")) == []
    assert {p.suffix for p in fresh.iterdir()} == {".lock"}


def test_a_compiler_that_does_not_end_is_given_up(compiler, fresh, monkeypatch):
    Path(os.environ["CC"]).write_text("#!/bin/sh\nexec sleep 20\n")
    monkeypatch.setattr(build, "_TIMEOUT", 0.2)
    assert "took longer than 0.2 seconds" in cpu.why_not()


def test_a_compiler_named_by_cc_that_is_not_there(fresh, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert cpu.why_not() == "no C compiler was found: CC=no-such-compiler"


def test_a_file_that_somebody_else_could_have_written_is_not_loaded(compiler, fresh, monkeypatch):
    assert cpu.library() is not None
    (kept,) = fresh.glob("*.so")
    kept.chmod(0o722)
    monkeypatch.setattr(build, "_outcome", None)
    assert "is not yours alone" in cpu.why_not()
    kept.chmod(0o700)
    moved = kept.rename(fresh / "elsewhere")
    kept.symlink_to(moved)
    monkeypatch.setattr(build, "_outcome", None)
    assert "is not yours alone" in cpu.why_not()


def test_a_folder_that_is_not_private_is_refused(compiler, fresh, monkeypatch):
    fresh.mkdir()
    fresh.chmod(0o777)
    assert "mode 700" in cpu.why_not()
    fresh.chmod(0o700)
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    monkeypatch.setattr(build, "_outcome", None)
    assert "must be a folder of yours" in cpu.why_not()


def test_a_cache_folder_that_cannot_be_made_is_a_reason(compiler, fresh, monkeypatch):
    blocked = fresh.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert "could not be written or loaded" in cpu.why_not()


def test_other_systems_and_an_unknown_openmp_are_reasons(fresh, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert "on Linux only" in cpu.why_not()
    monkeypatch.setattr(build, "_outcome", None)
    monkeypatch.setattr(build, "_openmp", lambda: (_ for _ in ()).throw(build.Unavailable("no OpenMP")))
    assert cpu.why_not() in ("no OpenMP", "no C compiler was found: neither cc, gcc nor clang")


@pytest.mark.slow
def test_there_is_one_openmp_library_in_the_process():
    if cpu.library() is None:
        pytest.skip(f"no compiled kernels: {cpu.why_not()}")
    # in a process of its own: other packages of these tests bring one with them
    code = """
        import torch
        from pathlib import Path
        from bayesrnn.kernels import cpu
        assert cpu.library() is not None
        torch.ones(1000) @ torch.ones(1000)
        lines = Path("/proc/self/maps").read_text().splitlines()
        found = {line.split()[-1] for line in lines if "/" in line}
        print(len({f for f in found if Path(f).name.startswith(("libgomp", "libiomp5", "libomp"))}))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.slow
def test_a_forked_process_can_draw_and_run_layers():
    if cpu.library() is None:
        pytest.skip(f"no compiled kernels: {cpu.why_not()}")
    code = """
        import os, torch, bayesrnn as br
        torch.set_num_threads(2)
        layer = br.LSTM(40, 150, recurrent_dropout=0.5)
        q = br.BayesByBackprop(torch.nn.Linear(400, 400))
        x = torch.randn(4, 20, 40)
        with br.draw(layer, seed=0), br.draw(q, seed=0), torch.no_grad():
            before = layer(x)[0], q.posterior.weights(q.means, q.posterior.noise(torch.Generator().manual_seed(1)))
        child = os.fork()
        if child == 0:
            from bayesrnn.kernels.cpu import build
            torch.set_num_threads(1)
            assert build.threads() == 1
            with br.draw(layer, seed=0), torch.no_grad():
                same = torch.equal(layer(x)[0], before[0])
                again = q.posterior.weights(q.means, q.posterior.noise(torch.Generator().manual_seed(1)))
            os._exit(0 if same and torch.equal(again["weight"], before[1]["weight"]) else 5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert python(code, OMP_NUM_THREADS="2").splitlines()[-1] == "0"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize("architecture", ["x86-64-v3", "x86-64"])
def test_narrower_vectors_give_the_same_numbers(ready, fresh, architecture):
    code = """
        import torch, bayesrnn as br
        from bayesrnn.kernels.cpu import build
        from bayesrnn.kernels.gaussian import compiled
        from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior
        from bayesrnn.kernels.cpu.memory import Pool

        def results():
            assert build.why_not() is None
            torch.manual_seed(0)
            shapes = ((130, 71), (999,), (4, 3, 5))
            spec = DrawSpec(("a", "b", "c"), shapes, (1, None, 0), (None, None, 2), torch.float32, torch.device("cpu"),
                        KernelPrior("groups", 0.25, 0.4, 0.05))
            means = [torch.randn(s).requires_grad_() for s in shapes]
            rhos = [(3 * torch.randn(s)).requires_grad_() for s in shapes]
            found = compiled.draw(torch.tensor([3]), spec, means, rhos, pool=Pool())
            grads = torch.autograd.grad(sum(w.sum() for w in found.weights) + found.kl, means + rhos)
            made = [*found.weights, found.kl, *grads, *compiled.draw_many([3, 4], spec, means, rhos, pool=Pool())]
            for cell in (br.LSTM, br.GRU, br.RNN):
                for tied in (True, False):
                    layer = cell(9, 37, bidirectional=True, input_dropout=0.2, recurrent_dropout=0.3, tied=tied)
                    with br.draw(layer, seed=1):
                        out = layer(torch.randn(5, 7, 9))[0]
                    made += [out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))]
            return [m.detach() for m in made]

        usual, build._outcome = results(), None
        changed = {"-march=native": "-march=ARCHITECTURE", "-O3": "-O1"}
        build.FLAGS = tuple(changed.get(f, f) for f in build.FLAGS)
        torch.testing.assert_close(results(), usual, rtol=2e-4, atol=2e-5)
        print("same")
    """
    fresh.mkdir(mode=0o700)
    shutil.copy(ready, fresh / ready.name)
    assert python(code.replace("ARCHITECTURE", architecture)) == "same"
    assert len(list(fresh.glob("*.so"))) == 2


def test_the_sources_are_part_of_the_package():
    assert all((SOURCE / name).is_file() for name in build.SOURCES)
