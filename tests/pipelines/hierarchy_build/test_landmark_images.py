import io

import numpy as np
import pytest
from PIL import Image

from hgld.errors import ConfigError, ImageError, TableError
from hgld.pipelines.hierarchy import landmark_images
from hgld.pipelines.hierarchy.landmark_images import find_images, listed_images, read_image
from tests.rows import each_row, refused


def picture(color, kind="JPEG", size=(40, 30)):
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, kind)
    return buffer.getvalue()


def put(file, data):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def test_image_folders_and_an_image_table_give_the_same_images(tmp_path):
    members = {
        "train/7/a.jpg": picture("red"),
        "train/7/b.png": picture("blue", "PNG"),
        "index/7/c.WEBP": picture("lime"),
    }
    for name, data in members.items():
        put(tmp_path / "folder" / name, data)
    for name, data in members.items():
        put(tmp_path / "listed" / "flat" / name.replace("/", "_"), data)
    rows = [f"{n.split('/')[0]},{n.split('/')[1]},flat/{n.replace('/', '_')}" for n in members]
    put(tmp_path / "listed" / "images.csv", "\n".join(["split,landmark_id,path", *rows]).encode())

    for place in ("folder", "listed"):
        found = find_images(tmp_path / place)
        assert {key: len(images) for key, images in found.items()} == {("index", 7): 1, ("train", 7): 2}
        red, blue = (read_image(image) for image in found["train", 7])
        assert np.asarray(red)[5, 5, 0] > 240
        assert np.asarray(blue)[5, 5].tolist() == [0, 0, 255]


def test_files_outside_the_documented_folder_layout_are_ignored(tmp_path):
    for name in ("train/7/notes.txt", "train/x/a.jpg", "a.jpg", "train/7/deep/a.jpg"):
        put(tmp_path / name, picture("red"))
    with pytest.raises(ConfigError, match=r"no image found. Expected .*landmark_id"):
        find_images(tmp_path)


def test_images_listed_outside_the_image_folder_are_refused(tmp_path):
    put(tmp_path / "a.png", picture("red", "PNG"))
    found = listed_images([["a.png", "gone.png"], [], ["a.png"] * 9], tmp_path)
    assert [len(images) for images in found] == [1, 0, 8]
    assert read_image(found[0][0]).size == (40, 30)
    for path in ("../secret.png", "/etc/passwd", "a/../../x.png"):
        with pytest.raises(ConfigError, match="not a path within the folder"):
            listed_images([[path]], tmp_path)


@each_row(
    ("data", "reason"),
    [
        (b"", "no bytes"),
        (b"<html>not found</html>", "none of JPEG, PNG"),
        (picture("red", "JPEG", (400, 400))[:-200], "truncated"),
    ],
)
def test_invalid_images_are_refused_with_a_reason(tmp_path, data, reason):
    put(tmp_path / "train/1/a.jpg", data)
    (image,) = find_images(tmp_path)["train", 1]
    with pytest.raises(ImageError, match=reason):
        read_image(image)


def test_images_are_rotated_upright(tmp_path):
    wide = Image.new("RGB", (80, 40), "red")
    wide.paste("blue", (0, 0, 40, 40))
    turned = Image.Exif()
    turned[0x0112] = 6  # EXIF orientation 6: rotate by 90 degrees
    (tmp_path / "train/1").mkdir(parents=True)
    wide.save(tmp_path / "train/1/a.png", exif=turned)
    found = read_image(find_images(tmp_path)["train", 1][0])
    assert found.size == (40, 80)
    assert (found.getpixel((20, 10)), found.getpixel((20, 70))) == ((0, 0, 255), (255, 0, 0))


def test_too_large_image_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(landmark_images, "LARGEST_FILE", 10)
    put(tmp_path / "train/1/a.jpg", picture("red"))
    with pytest.raises(ImageError, match="expected at most 10"):
        read_image(find_images(tmp_path)["train", 1][0])


def find_images_of_table(text, *, tmp_path):
    put(tmp_path / "secret.jpg", picture("red"))
    put(tmp_path / "images" / "images.csv", text.encode())
    (tmp_path / "images" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    find_images(tmp_path / "images")


test_invalid_image_tables_are_refused = refused(
    find_images_of_table,
    [
        ("split,id\n", "lacks the column 'landmark_id'"),
        ("split,landmark_id,path\ntrain,x,a.jpg\n", "line 2: landmark_id is 'x'; expected a whole number"),
        ("split,landmark_id,path\ntrain,1,link.jpg\n", "not a path within the folder"),
        ("split,landmark_id,path\ntrain,1,gone.jpg\n", "no image found"),
    ],
    (ConfigError, TableError),
)
