"""Reading idx files: what is whole is read exactly, everything else is one clear sentence."""

import gzip
import hashlib
import re
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesrnn.errors import UserError
from bayesrnn.lab.tasks.digits import images as digits


def idx(entries: torch.Tensor, *, kind: int = 8) -> bytes:
    header = struct.pack(f">BBBB{entries.ndim}I", 0, 0, kind, entries.ndim, *entries.shape)
    return header + bytes(entries.flatten().tolist())


@pytest.fixture
def images():
    return torch.randint(256, (5, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(tmp_path, images):
    labels = torch.tensor([3, 0, 9, 1, 3], dtype=torch.uint8)
    for part, (name, _) in digits.FILES.items():
        whole = idx(images if "images" in part else labels)
        if "train" in part:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(whole))
        else:
            (tmp_path / name).write_bytes(whole)
    return tmp_path


def test_both_kinds_of_files_are_read(folder, images):
    found = digits.read_folder(folder)
    assert torch.equal(found.train_images, images)
    assert torch.equal(found.test_images, images)
    assert found.train_labels.tolist() == found.test_labels.tolist() == [3, 0, 9, 1, 3]
    assert found.train_images.dtype == torch.uint8


def read(tmp_path, content, dimensions=3):
    file = tmp_path / "some-file"
    file.write_bytes(content)
    return digits.read_idx(file, dimensions=dimensions)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an idx file"),
        (b"\x89PNG\r\n", "is not an idx file"),
        (b"\0\0\x0d\x03", r"entries of type 0x0d; only unsigned bytes"),
        (b"\0\0\x08\x01", "has 1 axis and by its name should have 3"),
        (b"\0\0\x08\x03\0\0", "is cut short within its header"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2, 2, 2) + b"1234567", "announces 8 bytes, but it has 7"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2, 2, 2) + b"123456789", "is longer than the 8 bytes"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1), "its header is damaged"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_what_is_wrong_is_said(tmp_path, content, message, zipped):
    with pytest.raises(UserError, match=message):
        read(tmp_path, gzip.compress(content) if zipped else content)


def test_damaged_gzip_streams(tmp_path, images):
    whole = gzip.compress(idx(images))
    with pytest.raises(UserError, match="is not whole: it ends too early; fetch it again"):
        read(tmp_path, whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is not whole: its gzip stream is damaged"):
        read(tmp_path, whole[:-8] + b"\0\0\0\0" + whole[-4:])  # another checksum
    with pytest.raises(UserError, match="cannot be read"):
        digits.read_idx(tmp_path / "nowhere", dimensions=3)


def test_an_absurd_header_takes_no_memory(tmp_path):
    content = b"\0\0\x08\x03" + struct.pack(">3I", 1_000_000, 28, 28)
    tracemalloc.start()
    for data in (content, gzip.compress(content)):
        with pytest.raises(UserError, match="is cut short: it announces 784,000,000 bytes"):
            read(tmp_path, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_stream_that_goes_on_and_on_is_not_unpacked(tmp_path):
    content = b"\0\0\x08\x01" + struct.pack(">I", 10) + bytes(50 << 20)
    bomb = gzip.compress(content, 1)
    del content
    tracemalloc.start()
    with pytest.raises(UserError, match="is longer than the 10 bytes"):
        read(tmp_path, bomb, dimensions=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), zipped=st.booleans())
def test_no_damage_escapes_as_anything_else(tmp_path_factory, data, zipped):
    whole = idx(torch.arange(24, dtype=torch.uint8).view(2, 3, 4))
    content = bytearray(gzip.compress(whole, mtime=0) if zipped else whole)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        found = read(tmp_path_factory.getbasetemp(), bytes(content))
    except UserError as error:
        said = str(error)
    else:
        said = "24 entries." if found.numel() == 24 else "something else"
    assert re.fullmatch(r"[^\n]+\.", said)


def test_files_that_do_not_go_together(folder, images):
    labels = digits.FILES["train_labels"][0]

    def replaced(content):
        (folder / f"{labels}.gz").write_bytes(gzip.compress(idx(content)))
        digits.read_folder(folder)

    with pytest.raises(UserError, match="The train files hold 5 images but 4 labels"):
        replaced(torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(UserError, match="train labels go up to 12; digits are 0 to 9"):
        replaced(torch.full((5,), 12, dtype=torch.uint8))
    with pytest.raises(UserError, match="has 3 axes and by its name should have 1"):
        replaced(images)
    (folder / f"{labels}.gz").unlink()
    with pytest.raises(UserError, match=f"has no {labels}.gz or {labels}"):
        digits.read_folder(folder)
    with pytest.raises(UserError, match="is not a folder"):
        digits.read_folder(folder / "deeper")


def test_images_of_another_size_and_empty_sets():
    none, labels = torch.zeros(0, 28, 28, dtype=torch.uint8), torch.zeros(0, dtype=torch.uint8)
    with pytest.raises(UserError, match="The train files hold no images"):
        digits.DigitImages(none, labels, none, labels)
    large, one = torch.zeros(1, 32, 30, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    with pytest.raises(UserError, match="train images are 32 x 30; digits are 28 x 28"):
        digits.DigitImages(large, one, large, one)


def test_download_asks_for_the_published_files(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *given, **options: asked.append(given))
    there, *names = (f"{name}.gz" for name, _ in digits.FILES.values())
    (tmp_path / there).write_bytes(b"kept")
    assert digits.download(tmp_path) == tmp_path
    assert [given[:2] for given in asked] == [(digits.ADDRESS + n, str(tmp_path / n)) for n in names]
    assert all(len(bytes.fromhex(checksum)) == hashlib.sha256().digest_size for *_, checksum in asked)


def test_a_download_that_fails_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "served").write_bytes(b"another file")
    fetch = torch.hub.download_url_to_file
    served = (tmp_path / "served").as_uri()
    monkeypatch.setattr(
        torch.hub, "download_url_to_file", lambda url, *rest, **options: fetch(served, *rest, **options)
    )
    with pytest.raises(UserError, match=r"could not be fetched into \S+ \(invalid hash value .*; try again"):
        digits.download(tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())
