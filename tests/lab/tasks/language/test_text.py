import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.tasks.language.text import Corpus, python_docs, read_folder
from bayesrnn.lab.text import EOS, UNK, Vocabulary, batchify, windows


@pytest.fixture(scope="module")
def docs():
    return python_docs()


def folder(tmp_path, **files):
    for name, text in files.items():
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / f"{name}.txt").write_bytes(data)
    return tmp_path


class TestPythonDocs:
    def test_sizes(self, docs):
        total = len(docs.train) + len(docs.valid) + len(docs.test)
        assert 40_000 < total < 150_000
        assert 0.75 < len(docs.train) / total < 0.85
        assert 0.05 < len(docs.valid) / total < 0.15
        assert 0.05 < len(docs.test) / total < 0.15

    def test_same_every_time(self, docs):
        assert python_docs() == docs

    def test_words_are_lower_case_and_sentences_end(self, docs):
        for split in (docs.train, docs.valid, docs.test):
            assert split[-1] == EOS
            assert all(word == word.lower() for word in split if word != "N")
            assert 5 < len(split) / split.count(EOS) < 25
            assert not any(a == b == EOS for a, b in itertools.pairwise(split))

    def test_no_long_sentence_of_valid_or_test_is_in_train(self, docs):
        def sentences(tokens):
            return {s for s in " ".join(tokens).split(f" {EOS} ") if len(s.split()) > 8}

        train = sentences(docs.train)
        for split in (docs.valid, docs.test):
            shared = sentences(split) & train
            assert len(shared) < 0.02 * len(sentences(split))


class TestReadFolder:
    def test_lines_end_with_eos(self, tmp_path):
        corpus = read_folder(folder(tmp_path, train="a b\nc  d\n", valid="b", test="é a\r\n"))
        assert corpus.train == ["a", "b", EOS, "c", "d", EOS]
        assert corpus.valid == ["b", EOS]
        assert corpus.test == ["é", "a", EOS]

    @pytest.mark.parametrize("name", ["ptb.valid", "my-val-set", "dev"])
    def test_names_of_the_validation_file(self, tmp_path, name):
        corpus = read_folder(folder(tmp_path, train="a b", test="a", **{name: "x"}))
        assert corpus.valid == ["x", EOS]

    def test_byte_order_mark_is_not_a_word(self, tmp_path):
        assert read_folder(folder(tmp_path, train=b"\xef\xbb\xbfa b", valid="a", test="a")).train[0] == "a"

    def test_missing_split(self, tmp_path):
        with pytest.raises(UserError, match=r"no valid file.*\*valid\* or \*val\* or \*dev\*"):
            read_folder(folder(tmp_path, train="a b", test="a"))

    def test_several_files_for_one_split(self, tmp_path):
        with pytest.raises(UserError, match=r"several train files \(train1.txt, train2.txt\)"):
            read_folder(folder(tmp_path, train1="a b", train2="a b", valid="a", test="a"))

    def test_one_file_for_two_splits(self, tmp_path):
        with pytest.raises(UserError, match="both the train and the test file"):
            read_folder(folder(tmp_path, train_and_test="a b", valid="a"))

    def test_not_a_folder(self, tmp_path):
        with pytest.raises(UserError, match="is not a folder"):
            read_folder(tmp_path / "nothing")

    @pytest.mark.parametrize("bad", [b"caf\xe9 a b", b"\xff\xfea\x00"])
    def test_not_utf8(self, tmp_path, bad):
        with pytest.raises(UserError, match="not UTF-8"):
            read_folder(folder(tmp_path, train=bad, valid="a", test="a"))

    def test_binary(self, tmp_path):
        with pytest.raises(UserError, match="binary"):
            read_folder(folder(tmp_path, train=b"a\0b c", valid="a", test="a"))

    @pytest.mark.parametrize(("text", "what"), [("", "no words"), ("\n\n", "no words"), ("a a\na", "only one word")])
    def test_empty_or_one_word(self, tmp_path, text, what):
        with pytest.raises(UserError, match=what):
            read_folder(folder(tmp_path, train=text, valid="a", test="a"))

    def test_empty_test_split(self, tmp_path):
        with pytest.raises(UserError, match="test text has no words"):
            read_folder(folder(tmp_path, train="a b", valid="a", test=""))


class TestVocabulary:
    def test_most_frequent_first_and_ties_by_name(self):
        assert Vocabulary("b a c c a b c".split()).words == [UNK, "c", "a", "b"]

    def test_round_trip_and_unknowns(self):
        vocabulary = Vocabulary("a b a b c".split(), min_count=2)
        assert "a" in vocabulary
        assert "c" not in vocabulary
        assert len(vocabulary) == 3
        ids = vocabulary.encode("c a d b".split())
        assert ids.dtype == torch.long
        assert vocabulary.decode(ids) == [UNK, "a", UNK, "b"]
        assert vocabulary.unknown("c a d b".split()) == 2

    def test_unk_in_the_text_is_the_unknown_word(self):
        vocabulary = Vocabulary("a <unk> b <unk>".split())
        assert vocabulary.words.count(UNK) == 1
        assert vocabulary.encode([UNK]).tolist() == [0]

    def test_refuses(self):
        with pytest.raises(UserError, match="lower min_count"):
            Vocabulary("a b c".split(), min_count=2)


class TestStreams:
    def test_columns_are_consecutive_text(self):
        stream = batchify(torch.arange(11), 3)
        assert stream.T.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]

    @given(n=st.integers(4, 200), batch=st.integers(1, 7), length=st.integers(1, 40))
    def test_windows_cover_each_target_once(self, n, batch, length):
        if n // batch < length + 1:
            return
        stream = batchify(torch.arange(n), batch)
        pairs = list(windows(stream, length))
        assert torch.equal(torch.cat([x for x, _ in pairs]), stream[:-1])
        assert torch.equal(torch.cat([y for _, y in pairs]), stream[1:])
        assert all(x.shape == y.shape and len(x) <= length for x, y in pairs)

    def test_too_short(self):
        with pytest.raises(UserError, match="too few for 4 streams"):
            batchify(torch.arange(7), 4)
        with pytest.raises(UserError, match="shorter than one window of 5"):
            windows(batchify(torch.arange(10), 2), 5)


def test_corpus_checks_itself():
    with pytest.raises(UserError, match="only one word"):
        Corpus(train=["a", EOS], valid=["a"], test=["a"])


def test_one_of_anything_is_said_as_one():
    with pytest.raises(UserError, match="seen at least 1 time in the training text"):
        Vocabulary(["a", "a"], min_count=1)
    with pytest.raises(UserError, match="The text has 1 token, too few for 1 stream of"):
        batchify(torch.tensor([1]), 1)
    assert [counted(n, "word") for n in (0, 1, 2, 1200)] == ["0 words", "1 word", "2 words", "1,200 words"]
