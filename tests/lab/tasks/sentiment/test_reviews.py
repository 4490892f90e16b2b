import gzip
import io
import os
import random
import tarfile
from pathlib import Path

import pytest
import torch

from bayesrnn.errors import UserError
from bayesrnn.lab.tasks.sentiment import reviews as module
from bayesrnn.lab.tasks.sentiment.reviews import AUTHORS, END, PAD, SPECIAL, START, UNKNOWN, Review, cut, read


def files(count=6, seed=0):
    """Texts and ratings of the four authors, as bytes by name inside the archive."""
    source = random.Random(seed)
    made = {}
    for author in AUTHORS:
        texts = [
            " ".join(source.choices(["Good", "bad", "film", "caf\xe9", "x\x85y"], k=9)) + " " for _ in range(count)
        ]
        ratings = [f"{source.random():.2f}" for _ in range(count)]
        made[f"scaledata/{author}/subj.{author}"] = ("\n".join(texts) + "\n").encode("latin-1")
        made[f"scaledata/{author}/rating.{author}"] = ("\n".join(ratings) + "\n").encode()
        made[f"scaledata/{author}/id.{author}"] = b"1\n" * count
    return made


def unpacked(folder, contents):
    for name, data in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def packed(folder, contents, extra=()):
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "scale_data.tar.gz", "w:gz") as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in extra:
            archive.addfile(info)
    return folder / "scale_data.tar.gz"


def made_up(count, seed=0, words=40):
    source = random.Random(seed)
    return [
        Review("a", [*source.choices([f"w{i}" for i in range(words)], k=source.randrange(5, 60)), END], source.random())
        for _ in range(count)
    ]


class TestRead:
    def test_archive_and_folder_are_the_same(self, tmp_path):
        archive, folder = packed(tmp_path / "a", files()), unpacked(tmp_path / "b", files())
        found = read(archive)
        assert len(found) == 24
        assert [r.author for r in found[::6]] == list(AUTHORS)
        for path in (archive.parent, folder, folder / "scaledata"):
            assert read(path) == found

    def test_words(self, tmp_path):
        contents = files(1)
        contents[f"scaledata/{AUTHORS[0]}/subj.{AUTHORS[0]}"] = b"A  G\xc9NIAL film\x85 , Not \n"
        first = read(unpacked(tmp_path, contents))[0]
        assert first.words == ["a", "g\xe9nial", "film\x85", ",", "not", END]

    def test_last_line_needs_no_end(self, tmp_path):
        contents = {name: data.rstrip(b"\n") for name, data in files().items()}
        assert read(unpacked(tmp_path / "a", contents)) == read(unpacked(tmp_path / "b", files()))

    @pytest.mark.parametrize("store", [unpacked, packed])
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c, a: [c.pop(k) for k in list(c) if a in k], r"data\S* has no folder Scott\+Renshaw"),
            (lambda c, a: c.pop(f"scaledata/{a}/rating.{a}"), r"data\S* has no file rating.Scott\+Renshaw"),
            (lambda c, a: c.pop(f"scaledata/{a}/subj.{a}"), r"has no file subj.Scott\+Renshaw"),
            (lambda c, a: c.update({f"scaledata/{a}/rating.{a}": b"0.5\n"}), r"has 6 lines and rating.\S+ has 1;"),
            (lambda c, a: c.update({f"scaledata/{a}/rating.{a}": b""}), r"rating.Scott\+Renshaw is empty"),
            (lambda c, a: c.update({f"scaledata/{a}/rating.{a}": b"0.5\n1.5\n"}), r"Line 2 of rating.\S+ is '1.5'"),
            (lambda c, a: c.update({f"scaledata/{a}/rating.{a}": b"nan\n"}), "is 'nan'; a rating is a number from 0"),
            (lambda c, a: c.update({f"scaledata/{a}/rating.{a}": b"good\n"}), "is 'good'"),
        ],
    )
    def test_what_is_wrong(self, tmp_path, store, change, message):
        contents = files()
        change(contents, "Scott+Renshaw")
        with pytest.raises(UserError, match=message) as error:
            read(store(tmp_path / "data", contents))
        assert "\n" not in str(error.value)

    def test_places_without_data(self, tmp_path):
        with pytest.raises(UserError, match=r"does not exist; name scale_data\.tar\.gz"):
            read(tmp_path / "none")
        with pytest.raises(UserError, match=r"has neither scale_data\.tar\.gz nor"):
            read(tmp_path)

    @pytest.mark.parametrize(
        "data",
        [b"no archive", gzip.compress(b"no tar"), gzip.compress(b"x" * 5000)[:30], b""],
        ids=["no archive", "no tar", "cut", "empty"],  # a compressed file holds the time, and so would its name
    )
    def test_damaged_archive(self, tmp_path, data):
        file = tmp_path / "scale_data.tar.gz"
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"cannot be read .*get scale_data\.tar\.gz again"):
            read(file)

    def test_cut_short_archive(self, tmp_path):
        file = packed(tmp_path, files(200))
        file.write_bytes(file.read_bytes()[:-200])
        with pytest.raises(UserError, match="cannot be read"):
            read(file)

    def test_members_that_would_escape_write_nothing(self, tmp_path):
        contents = files()
        evil = {f"../../{AUTHORS[0]}x/subj.{AUTHORS[0]}x": b"bad \n", "/tmp/subj.evil/../rating.tmp": b"1\n"}
        before = set(tmp_path.rglob("*"))
        file = packed(tmp_path / "a" / "b", contents | evil)
        assert len(read(file)) == 24
        assert set(tmp_path.rglob("*")) - before == {tmp_path / "a", tmp_path / "a/b", file}

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
    def test_links_are_refused(self, tmp_path, kind):
        contents = files()
        name = f"scaledata/{AUTHORS[0]}/subj.{AUTHORS[0]}"
        del contents[name]
        link = tarfile.TarInfo(name)
        link.type, link.linkname = kind, "/etc/passwd"
        with pytest.raises(UserError, match="no ordinary file"):
            read(packed(tmp_path, contents, [link]))

    def test_sizes_are_limited(self, tmp_path, monkeypatch):
        archive, folder = packed(tmp_path / "a", files(50)), unpacked(tmp_path / "b", files(50))
        monkeypatch.setattr(module, "_MAX_FILE", 1000)
        for path in (archive, folder):
            with pytest.raises(UserError, match=r"larger than|of at most 0 MB"):
                read(path)
        monkeypatch.setattr(module, "_MAX_ARCHIVE", 10_000)
        with pytest.raises(UserError, match="unpacks to more than"):
            read(archive)


class TestCut:
    def test_every_token_is_there_once_and_in_order(self):
        reviews = made_up(30)
        parts = cut(reviews, length=16, valid=0.2)
        texts: dict[int, list[int]] = {}
        for part in (parts.train, parts.valid, parts.test):
            for column, number in zip(part.tokens.t().tolist(), part.review.tolist(), strict=True):
                kept = column[column.count(PAD) :]
                assert column == [PAD] * (16 - len(kept)) + kept  # padding in front
                texts.setdefault(number, []).extend(kept)
        assert all(text[0] == START for text in texts.values())
        words = sorted(" ".join(parts.words[i] for i in text[1:]) for text in texts.values())
        unknown = set(parts.words[len(SPECIAL) :])
        expected = sorted(" ".join(w if w in unknown else "<unk>" for w in r.words) for r in reviews)
        assert words == expected

    def test_a_review_is_on_one_side(self):
        parts = cut(made_up(60), length=10)
        sides = [set(part.review.tolist()) for part in (parts.train, parts.valid, parts.test)]
        assert [len(side) for side in sides] == [44, 4, 12]
        assert len(set.union(*sides)) == 60

    def test_the_authors_division_mixes_reviews(self):
        parts = cut(made_up(60), by="chunk", length=10, valid=0)
        total = len(parts.train) + len(parts.test)
        assert len(parts.train) == int(total * 0.8)
        assert len(parts.valid) == 0
        assert torch.equal(torch.cat([parts.train.review, parts.test.review]).sort().values.unique(), torch.arange(60))

    def test_copies_stay_out(self):
        reviews = made_up(30)
        twice = [*reviews, *reviews[:10]]
        sides = [p.tokens.t().tolist() for p in (cut(twice).train, cut(twice).valid, cut(twice).test)]
        assert len({tuple(column) for side in sides for column in side}) == sum(map(len, sides)) == 30
        parts = cut(twice, by="chunk", valid=0)
        assert len(parts.train) + len(parts.test) == 40

    def test_vocabulary_of_the_training_reviews_only(self):
        reviews = made_up(50)
        parts = cut(reviews, length=100)
        seen = set(parts.train.tokens.flatten().tolist())
        assert seen == set(range(len(parts.words))) - {UNKNOWN}
        rare = cut([*reviews, *(Review("b", [f"rare{i}", END], 0.5) for i in range(50))], length=100)
        assert (rare.test.tokens == UNKNOWN).any()
        everything = cut([*reviews, *(Review("b", [f"rare{i}", END], 0.5) for i in range(50))], length=100, by="chunk")
        assert not (everything.test.tokens == UNKNOWN).any()

    def test_most_frequent_words_are_kept(self):
        parts = cut(made_up(50), words=7)
        assert len(parts.words) == len(SPECIAL) + 7
        counts = torch.bincount(parts.train.tokens.flatten(), minlength=10)[len(SPECIAL) :]
        assert (counts.diff() <= 0).all()

    def test_scale_is_that_of_the_training_part(self):
        parts = cut(made_up(50), length=10)
        ratings = parts.train.ratings
        assert parts.mean == pytest.approx(float(ratings.mean()))
        assert parts.sd == pytest.approx(float((ratings - ratings.mean()).square().mean().sqrt()))

    def test_same_every_time_and_the_seed_matters(self):
        reviews = made_up(50)
        a, b, c = cut(reviews), cut(reviews), cut(reviews, seed=1)
        assert torch.equal(a.train.tokens, b.train.tokens)
        assert not torch.equal(a.test.ratings, c.test.ratings)

    def test_bad_arguments(self):
        reviews = made_up(50)
        with pytest.raises(UserError, match="too few"):
            cut(reviews[:3])
        with pytest.raises(UserError, match="too alike"):
            cut([Review("a", r.words, 0.5) for r in reviews])


@pytest.fixture(scope="module")
def real():
    folder = os.environ.get("BAYESRNN_DATA", "")
    for path in (Path(folder), Path(folder) / "reviews"):
        if folder and (path / "scale_data.tar.gz").is_file():
            return read(path)
    pytest.skip("BAYESRNN_DATA names no folder with scale_data.tar.gz")


class TestScaleData:
    """The real file, where there is one."""

    def test_reviews(self, real):
        assert [sum(r.author == author for r in real) for author in AUTHORS] == [1027, 1307, 902, 1770]

    def test_the_published_division(self, real):
        parts = cut(real, by="chunk", valid=0)
        assert (len(parts.train), len(parts.test)) == (10_620, 2_655)
        assert round(parts.mean, 5) == 0.58917
        assert round(parts.sd, 5) == 0.18391
        assert round(float((parts.test.ratings - parts.mean).square().mean().sqrt()), 5) == 0.19146
        assert parts.train.tokens.shape == (200, 10_620)
        train, test = set(parts.train.review.tolist()), set(parts.test.review.tolist())
        assert (len(test), len(train & test)) == (1011, 1), "the review at the border"

    def test_by_review(self, real):
        parts = cut(real)
        sides = [set(part.review.tolist()) for part in (parts.train, parts.valid, parts.test)]
        assert len(set.union(*sides)) == sum(map(len, sides)) == len({tuple(r.words) for r in real})
        assert (len(parts.train), len(parts.valid), len(parts.test)) == (9_517, 1_034, 2_608)
