"""Readers of data: texts and token files, series, digits, reviews, captions, images and their features."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_inputs import ODD, altered, as_json, changed, mixed, st, values, write


@cache
def _base(name: str) -> Any:
    from bayesrnn.lab import recipes

    return recipes.load(name)


def text_inputs() -> Any:
    words = st.lists(st.sampled_from(["the", "cat", "sat", "<unk>", "<eos>", "\n", " ", "N", *ODD]), max_size=30)
    text = words.map(lambda parts: " ".join(parts).encode("utf-8", "surrogatepass"))
    one = mixed(st.binary(max_size=60), text, changed(st.just(b"the cat sat on the mat\nand the dog\n" * 4)))
    return st.tuples(one, one, one, st.integers(1, 4), st.integers(1, 9))


def read_text(given: tuple[bytes, bytes, bytes, int, int], folder: Path) -> object:
    from bayesrnn.lab import recipes
    from bayesrnn.lab.tasks.language import task as language
    from bayesrnn.lab.tasks.language.text import read_folder

    train, valid, test, batch, window = given
    for name, data in (("train.txt", train), ("valid.txt", valid), ("test.txt", test)):
        write(folder, name, data)
    corpus = read_folder(folder)
    recipe = recipes.override(_base("brnn-medium"), [f"batch_size={batch}", f"window={window}"])
    return language.streams(corpus, recipe)


@cache
def token_files() -> dict[str, bytes]:
    from bayesrnn.lab.tasks.language.token_files import tokenize

    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder, "text"), Path(folder, "tokens")
        text.mkdir()
        for split in ("train", "valid", "test"):
            (text / f"{split}.txt").write_text("the cat sat on the mat\n" * 4)
        tokenize(text, out)
        return {path.name: path.read_bytes() for path in out.iterdir()}


def tokens_inputs() -> Any:
    whole = token_files()
    about = json.loads(whole["tokens.json"])
    sizes = st.fixed_dictionaries(
        {split: st.sampled_from([28, 0, 14, 56, -1, 2**70, True, None]) for split in about["tokens"]}
    )
    kinds = st.sampled_from(["<u2", "<u4", "O", "<f8", "V0", "|S0", "<U3", ">u2", ["<u2"], None])
    built = st.builds(lambda kind, tokens: as_json({**about, "type": kind, "tokens": tokens}), kinds, sizes)
    described = mixed(
        changed(st.just(whole["tokens.json"])),
        altered(about).map(as_json),
        built,
        values().map(as_json),
        st.just(whole["tokens.json"]),
    )
    train = whole["train.tokens"]
    tokens = mixed(st.just(train), st.just(train), changed(st.just(train)), st.binary(max_size=60), st.just(b""))
    words = mixed(st.just(whole["vocabulary.txt"]), changed(st.just(whole["vocabulary.txt"])))
    return st.tuples(described, tokens, words, st.integers(1, 4), st.integers(1, 9))


def read_tokens(given: tuple[bytes, bytes, bytes, int, int], folder: Path) -> object:
    from bayesrnn.lab import recipes
    from bayesrnn.lab.tasks.language import task as language
    from bayesrnn.lab.tasks.language.token_files import TokenFolder, as_ids

    about, train, words, batch, window = given
    for name, data in {**token_files(), "tokens.json": about, "train.tokens": train, "vocabulary.txt": words}.items():
        write(folder, name, data)
    recipe = recipes.override(_base("brnn-medium"), [f"batch_size={batch}", f"window={window}"])
    streams = language.disk_streams(TokenFolder(folder), recipe)
    return as_ids(streams.train[: window + 1], len(streams.vocabulary))


def series_inputs() -> Any:
    dates = [b"date,value\n" + b"".join(b"2001-%02d-01,%d\n" % (1 + k % 12, k) for k in range(12))]
    dates += [b"year;a;b\n" + b"".join(b"%d;%d,5;x\n" % (1990 + k, k) for k in range(20))]
    dates += [b"1.5\n2\n3\n4\n" * 5, b"t\tv\n2001-01-01 00:00\t1\n2001-01-01 01:00\t2\n2001-01-01 02:00\t3\n"]
    marks = [",", ";", "\n", "\t", "|", '"']
    dated = ["2001", "2001-01", "2001-01-02", "Q1 2001", "2001W05", "Jan 2001", "12:30", "999999999999", "31/12/2001"]
    cells = st.sampled_from([*marks, *dated, "1.5", "1,5", "date", "v", *ODD])
    built = st.lists(cells, max_size=40).map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))
    near = changed(st.sampled_from(dates))
    data = mixed(st.binary(max_size=60), built, near, near)
    none, known = st.just(""), st.sampled_from(["value", "a", "date", "all", "x,y"])
    names = mixed(none, none, none, none, none, known, st.text(max_size=4))
    return st.tuples(data, names, names, names)


def read_series(given: tuple[bytes, str, str, str], folder: Path) -> object:
    from bayesrnn.lab import recipes
    from bayesrnn.lab.tasks.forecast.plan import forecaster_of
    from bayesrnn.lab.tasks.forecast.source import Source
    from bayesrnn.lab.tasks.forecast.words import Words

    data, target, covariates, date = given
    source = Source.of(write(folder, "s.csv", data), target, date, words=Words(spelling="data.{}", sets="="))
    recipe = recipes.load("forecast")
    section = recipe.data.model_copy(update={"target": target, "covariates": covariates})
    with source.naming():
        return forecaster_of(recipe.model_copy(update={"data": section}), source).panel_of(source.frame()).y


def idx_of(shape: list[int], body: bytes, kind: int = 8, axes: int | None = None) -> bytes:
    header = bytes([0, 0, kind % 256, (len(shape) if axes is None else axes) % 256])
    return header + b"".join(struct.pack(">I", n % 2**32) for n in shape) + body


def digits_inputs() -> Any:
    valid = idx_of([2, 28, 28], bytes(2 * 28 * 28))
    shape = st.lists(st.integers(0, 30) | st.integers(0, 2**32), max_size=4)
    built = st.builds(idx_of, shape, st.binary(max_size=40), st.sampled_from([8, 9, 13, 0]),
                      st.none() | st.integers(0, 255))  # fmt: skip
    near = changed(st.just(valid))
    one = mixed(st.binary(max_size=30), near, near, built)
    zipped = mixed(one.map(gzip.compress), changed(st.just(gzip.compress(valid))))
    return st.tuples(mixed(one, zipped), st.sampled_from([1, 3]))


def read_digits(given: tuple[bytes, int], folder: Path) -> object:
    from bayesrnn.lab.tasks.digits import images as digits

    data, dimensions = given
    found = digits.read_idx(write(folder, "x", data), dimensions=dimensions)
    if dimensions == 3 and found.numel():
        import torch

        labels = torch.zeros(len(found), dtype=torch.uint8)
        return digits.DigitImages(found, labels, found, labels)
    return found


def tar_of(members: list[tuple[str, bytes, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(content), kind
            info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@cache
def reviews_archive() -> bytes:
    from bayesrnn.lab.tasks.sentiment.reviews import AUTHORS

    members = []
    for author in AUTHORS:
        members.append((f"scaledata/{author}/subj.{author}", b"a fine film\na bad film\n", tarfile.REGTYPE))
        members.append((f"scaledata/{author}/rating.{author}", b"0.9\n0.1\n", tarfile.REGTYPE))
    return tar_of(members)


def reviews_inputs() -> Any:
    from bayesrnn.lab.tasks.sentiment.reviews import AUTHORS

    names = st.sampled_from([f"scaledata/{a}/{k}.{a}" for a in AUTHORS for k in ("subj", "rating")] +
                            ["../../x", "/etc/passwd", "", "a/subj.a"])  # fmt: skip
    kinds = st.sampled_from(
        [tarfile.REGTYPE] * 4 + [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
    )
    content = st.binary(max_size=30) | st.sampled_from([b"0.5\n", b"nan\n", b"x\n", b"2\n", b"a b\n"])
    # A member that claims to be more than it has is refused by tarfile itself; directories have no content.
    member = st.tuples(names, content, kinds).map(lambda m: (m[0], b"" if m[2] != tarfile.REGTYPE else m[1], m[2]))
    built = st.lists(member, max_size=9).map(tar_of)
    raw = gzip.decompress(reviews_archive())
    inside = changed(st.just(raw)).map(lambda data: gzip.compress(data, 1))
    return mixed(st.binary(max_size=40), changed(st.just(reviews_archive())), built, inside)


def read_reviews(data: bytes, folder: Path) -> object:
    from bayesrnn.lab.tasks.sentiment import reviews

    found = reviews.read(write(folder, "scale_data.tar.gz", data))
    assert not list(folder.glob("**/passwd"))
    return found


FLICKR = b"a.jpg#0\tA dog runs .\na.jpg#1\tA black dog .\nb.jpg#0\tTwo cats .\nc.jpg#0\tA man .\n"
COCO = {
    "images": [{"id": k, "file_name": f"{k}.jpg"} for k in range(4)],
    "annotations": [{"image_id": k, "caption": "a dog runs"} for k in range(4)],
}


def captions_inputs() -> Any:
    lines = st.sampled_from([b"a.jpg\n", b"b.jpg\n", b"c.jpg\n", b"\n", b"d.jpg\n"])
    flickr = st.tuples(
        st.just("flickr"), mixed(changed(st.just(FLICKR)), st.just(FLICKR), st.binary(max_size=40)),
        mixed(lines, changed(st.just(b"a.jpg\n"))), mixed(lines, st.binary(max_size=20)), lines,
    )  # fmt: skip
    coco_file = mixed(altered(COCO).map(as_json), values().map(as_json), changed(st.just(as_json(COCO))))
    other = {**COCO, "images": [{"id": k, "file_name": f"v{k}.jpg"} for k in range(4)]}
    coco = st.tuples(st.just("coco"), coco_file, mixed(st.just(as_json(other)), altered(other).map(as_json)),
                     st.just(b""), st.just(b""))  # fmt: skip
    return flickr | coco


def read_captions(given: tuple[str, bytes, bytes, bytes, bytes], folder: Path) -> object:
    from bayesrnn.lab.tasks.captioning import captions

    kind, first, second, third, fourth = given
    if kind == "flickr":
        write(folder, "Flickr8k.token.txt", first)
        for name, data in (("train", second), ("dev", third), ("test", fourth)):
            write(folder, f"Flickr_8k.{name}Images.txt", data)
    else:
        write(folder, "captions_train.json", first)
        write(folder, "captions_val.json", second)
    return captions.read_captions(folder)


@cache
def pictures() -> list[bytes]:
    """A small image in each format that is read, one of them with an orientation to undo."""
    from PIL import Image

    image = Image.linear_gradient("L").resize((9, 7)).convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 6
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("JPEG", {"exif": turned}), ("JPEG", {"progressive": True}), ("PNG", {}), ("GIF", {}), ("BMP", {}), ("PPM", {}),
        ("WEBP", {"lossless": True}), ("WEBP", {}), ("TIFF", {}),
    ]  # fmt: skip
    made = []
    for kind, options in kinds:
        out = io.BytesIO()
        image.save(out, kind, **options)
        made.append(out.getvalue())
    grey = io.BytesIO()
    image.convert("P").save(grey, "PNG", transparency=0)
    return [*made, grey.getvalue()]


def png_of(width: int, height: int, depth: int, colour: int, body: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width % 2**32, height % 2**32, depth % 256, colour % 256, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body, 1)) + chunk(b"IEND", b"")


def image_inputs() -> Any:
    starts = [b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF\x24\0\0\0WEBPVP8 ", b"II*\0", b"P6 "]
    begun = st.builds(lambda start, rest: start + rest, st.sampled_from(starts), st.binary(max_size=60))
    side = st.integers(0, 12) | st.integers(0, 2**32)
    built = st.builds(
        png_of,
        side,
        side,
        st.sampled_from([1, 2, 4, 8, 16, 3]),
        st.sampled_from([0, 2, 3, 4, 6, 1]),
        st.binary(max_size=60),
    )
    most = st.sampled_from([0, 1, 255, 65535, 65536])
    portable = st.builds(
        lambda kind, w, h, most, rest: b"P%d %d %d %d\n" % (kind, w, h, most) + rest,
        st.integers(1, 7), side, side, most, st.binary(max_size=60),
    )  # fmt: skip
    near = changed(st.sampled_from(pictures()))
    return mixed(st.binary(max_size=40), begun, built, portable, near, near, near, near)


def read_image(data: bytes, folder: Path) -> object:
    from bayesrnn.lab.tasks.captioning.image_features import open_image, preprocess

    return preprocess(open_image(write(folder, "a.jpg", data)))


@cache
def feature_files() -> list[bytes]:
    import numpy as np

    made = []
    for kind in ("<f4", "<f2", ">f8", "<i4"):
        out = io.BytesIO()
        np.save(out, np.ones((3, 2), kind))
        made.append(out.getvalue())
    return made


def npy_of(header: str, body: bytes, version: int = 1) -> bytes:
    text = header.encode("utf-8", "surrogatepass")
    size = struct.pack("<H", len(text) % 65536) if version == 1 else struct.pack("<I", len(text))
    return b"\x93NUMPY" + bytes([version % 256, 0]) + size + text + body


def features_inputs() -> Any:
    kinds = st.sampled_from(
        ["'<f4'", "'|O'", "'<f2'", "'<U9999999'", "[('a', '<f4')]", "'|V0'", "'<m8[s]'", "1", "'x'", "'f4,f4'"]
    )
    number = st.integers(-1, 4) | st.integers(0, 2**64)
    shape = st.lists(number, max_size=3).map(lambda n: "(" + "".join(f"{k}, " for k in n) + ")")
    orders, ends = st.sampled_from(["False", "True", "1", "None"]), st.sampled_from(["\n", "", " " * 20 + "\n"])
    header = st.builds(
        lambda kind, order, shape, end: f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}{end}",
        kinds, orders, shape, ends,
    )  # fmt: skip
    odd = st.lists(
        st.sampled_from(["{", "}", "(", ")", "'descr'", ": ", ", ", "lambda: 0", "L", *ODD]), max_size=12
    ).map("".join)
    built = st.builds(npy_of, mixed(header, header, odd), st.binary(max_size=24), st.sampled_from([1, 2, 3, 0, 9]))
    names = mixed(st.just(b'["a.jpg", "b.jpg", "c.jpg"]'), values().map(as_json), changed(st.just(b'["a", "b", "c"]')))
    near = changed(st.sampled_from(feature_files()))
    return st.tuples(mixed(st.binary(max_size=40), built, near, near, st.sampled_from(feature_files())), names)


def read_features(given: tuple[bytes, bytes], folder: Path) -> object:
    from bayesrnn.lab.tasks.captioning import image_features

    data, names = given
    write(folder, "filenames.json", names)
    found = image_features.read_features(write(folder, "f.npy", data))
    return found.of(found.names)
