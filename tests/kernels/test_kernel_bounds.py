"""The check of addresses in Triton's interpreter finds what is out of bounds."""

import os

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

if os.environ.get("TRITON_INTERPRET") == "1":
    import torch
    import triton
    import triton.language as tl
    from triton.runtime.errors import InterpreterError

    @triton.jit
    def copy(x, out, n, B: tl.constexpr, MASKED: tl.constexpr):
        places = tl.arange(0, B)
        value = tl.load(x + places, mask=places < n) if MASKED else tl.load(x + places)
        tl.store(out + places, value, mask=places < n + (0 if MASKED else 1))

    @triton.jit
    def count(out, B: tl.constexpr):
        tl.atomic_add(out + tl.arange(0, B), 1.0)

    def test_what_is_out_of_bounds_is_found():
        x, out = torch.ones(200), torch.zeros(200)
        copy[(1,)](x[:100], out[:100], 100, B=128, MASKED=True)
        assert out.sum() == 100
        with pytest.raises(InterpreterError, match="copy reads 28 numbers outside of its arguments"):
            copy[(1,)](x[:100], out, 100, B=128, MASKED=False)
        with pytest.raises(InterpreterError, match="copy writes 1 numbers outside of its arguments"):
            copy[(1,)](x, out[:100], 100, B=128, MASKED=False)
        with pytest.raises(InterpreterError, match="count updates 28 numbers outside of its arguments"):
            count[(1,)](out[:100], B=128)
