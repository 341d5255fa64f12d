import io
from itertools import permutations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image
from torchvision.transforms import AutoAugment
from torchvision.transforms.v2 import functional

from hgld.data.batch import normalize
from hgld.data.decode import decode_batch
from hgld.data.images import EncodedImage, read_header
from hgld.data.views import TestView, TrainView, apply_policy, change_colors, color_matrices
from hgld.errors import InputError
from tests.hgld.reference_decoding import decode_by
from tests.rows import each_row


def make_image(width, height, *, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 256, (max(2, height // 40), max(2, width // 40), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC)).astype(float)
    return Image.fromarray((smooth + rng.normal(0, noise, smooth.shape)).clip(0, 255).astype(np.uint8))


def stored(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def encoded(data: bytes, orientation: int = 1, box: tuple[int, int, int, int] | None = None) -> EncodedImage:
    return EncodedImage(data, orientation, box, "train-000000.tar: item 7")


def boxed_size(image: EncodedImage) -> tuple[int, int]:
    if image.box is not None:
        return image.box[2] - image.box[0], image.box[3] - image.box[1]
    return read_header(image.data)._replace(orientation=image.orientation).upright


def decoded(images, view, path):
    """Return the images decoded by one of the two paths, (B, S, S, 3); the two use different memory layouts."""
    widths, heights = zip(*map(boxed_size, images), strict=True)
    parameters = view.parameters(widths, heights, seed=0, epoch=0, positions=np.arange(len(images)))
    layout = torch.channels_last if path == "fast" else torch.contiguous_format
    out = torch.empty(len(images), 3, *parameters.shape, dtype=torch.uint8, memory_format=layout)
    decode_by(path, images, parameters, out)
    return out.permute(0, 2, 3, 1).numpy()


def differences(images, view):
    """Return the absolute differences between the two paths, (B, S, S, 3)."""
    fast, reference = (decoded(images, view, path).astype(int) for path in ("fast", "reference"))
    return np.abs(fast - reference)


VIEWS = [TrainView(64), TrainView(48, scale=(0.5, 1), jitter=0.3, lighting=0.1), TestView(56, 64), TestView(64, 64)]
VIEWS += [TrainView(64, erasing=0.8), TrainView(56, resize=64), TestView(64, resize_mode="squash")]


@each_row("view", [*VIEWS, TrainView(64, autoaugment=True)])
def test_fast_path_agrees_with_the_reference_for_jpegs_decoded_at_full_size(view):
    """Rotated images may differ by the rounding between the horizontal and the vertical pass of the resize."""
    images = [
        encoded(stored(make_image(w, h, noise=40, seed=q), quality=q, subsampling=s), orientation)
        for w, h, q, s, orientation in (
            (90, 70, 50, 0, 1),
            (70, 90, 75, 1, 2),
            (64, 64, 90, 2, 3),
            (30, 41, 95, 2, 4),
            (127, 120, 100, 0, 1),
        )
    ]
    # Drop the largest image: its crop may be over twice the output, which the fast path decodes at reduced size.
    if view.size == 48:
        images = images[:4]
    assert not differences(images, view).any()
    if view in VIEWS:
        boxed = (10, 7, 61, 65)  # differs from the boxes of turned and mirrored images
        images = [encoded(stored(make_image(90, 70, noise=30, seed=k)), k, boxed) for k in range(1, 9)]
        assert differences(images, view).max() <= (2 if view.size == 48 else 1)


@each_row(("resize_mode", "shape"), [("longest", (49, 64)), ("original", (70, 90))])
@each_row("orientation", [1, 6])
def test_fast_path_equals_the_reference_for_whole_images(resize_mode, shape, orientation):
    """Views of whole images crop nothing, with the longest side resized to 64 and at the original size."""
    image, view = encoded(stored(make_image(90, 70, noise=30)), orientation), TestView(64, resize_mode=resize_mode)
    found = differences([image], view)
    assert found.shape[1:3] == (shape if orientation == 1 else shape[::-1])
    assert found.max() <= (orientation == 6)


def test_augmentation_policies_equal_autoaugment_of_torchvision(monkeypatch):
    """The reference is torchvision's AutoAugment with the same random numbers."""
    image, policies = make_image(40, 30, noise=20), AutoAugment()
    numbers = np.random.default_rng(0).uniform(size=(60, 5))
    seen = set()
    for drawn in numbers:
        chosen = (
            int(drawn[0] * 25),
            torch.tensor(drawn[1:3]),
            torch.tensor([0 if sign >= 0.5 else 1 for sign in drawn[3:]]),
        )
        monkeypatch.setattr(AutoAugment, "get_params", staticmethod(lambda count, chosen=chosen: chosen))
        expected = np.asarray(policies(image))
        assert np.array_equal(apply_policy(np.asarray(image), drawn), expected)
        seen.add(expected.tobytes())
    assert len(seen) > 20


@each_row(
    ("make", "tolerance", "average"),
    [
        (lambda: Image.fromarray(load_sample_image("china.jpg")), 6, 2.5),
        (lambda: make_image(640, 480), 1.5, 1.5),
        (lambda: Image.fromarray(np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)), 12, 12),
    ],
)
def test_reduced_decoding_stays_within_the_stated_tolerance(make, tolerance, average):
    data = stored(make(), quality=90)
    images = [encoded(data, orientation) for orientation in (1, 2, 5, 7)]
    images += [encoded(data, 1, box) for box in ((160, 32, 416, 288), (32, 64, 288, 320))]  # uneven on reduced pixels
    for view in (TrainView(64, scale=(0.3, 1)), TrainView(150, scale=(0.6, 1)), TestView(64, 72), TestView(200, 224)):
        mean = differences(images, view).mean(axis=(1, 2, 3))
        assert mean.max() < tolerance, view
        assert mean.max() > 0  # a difference of 0 would mean that no image was decoded at reduced size
        assert mean.mean() < average


def sixteen_bits(pixels):
    return cv2.imencode(".png", pixels.astype(np.uint16) * 257)[1].tobytes()


def transparent():
    image = make_image(60, 50)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return stored(image, "PNG")


KINDS = {
    "grey jpeg": (lambda: stored(make_image(60, 50).convert("L"), quality=98), None),
    "cmyk jpeg": (lambda: stored(make_image(60, 50).convert("CMYK"), quality=98), 12),
    "palette": (lambda: stored(make_image(60, 50).quantize(16), "PNG", transparency=3), 60),
    "16 bits of grey": (lambda: sixteen_bits(np.asarray(make_image(60, 50).convert("L"))), None),
    "16 bits": (lambda: sixteen_bits(np.asarray(make_image(60, 50))[:, :, ::-1]), 1),
    "alpha": (transparent, 0),
    "gif": (lambda: stored(make_image(60, 50), "GIF"), 60),
}


@each_row("kind", KINDS)
def test_unusual_image_modes_decode_equally_by_both_paths(kind):
    make, tolerance = KINDS[kind]
    image, view = encoded(make(), 1, (5, 3, 45, 43)), TestView(40, 40)
    fast = decoded([image], view, "fast").astype(int)[0]
    assert not differences([image], view).any()
    inside = np.asarray(make_image(60, 50))[3:43, 5:45].astype(int)
    if tolerance is not None:
        assert np.abs(fast - inside).max() <= tolerance
    else:
        assert (fast == fast[:, :, :1]).all()
        assert np.abs(fast[:, :, 0] - inside @ [0.299, 0.587, 0.114]).max() <= 4


def test_long_strips_are_cropped_to_their_middle_to_save_memory():
    strip = np.zeros((4, 40_000, 3), dtype=np.uint8)
    strip[:, 19_000:21_000] = 200
    found = decoded([encoded(stored(Image.fromarray(strip), "PNG"))], TestView(224, 256), "fast")
    assert (found == 200).all()


def test_color_jitter_equals_torchvision_in_every_order():
    # Values far from 0 and 255 are not clipped.
    pixels = (np.asarray(make_image(40, 30, seed=5)).astype(int) // 4 + 90).astype(np.uint8)
    numbers = np.random.default_rng(0).uniform(size=(24, 7))
    matrices = color_matrices(numbers, jitter=0.15, lighting=0.0)
    orders = list(permutations(range(3)))
    adjust = [functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation]
    seen = set()
    for row, matrix in zip(numbers, matrices, strict=True):
        order = orders[int(row[3] * 6)]
        seen.add(order)
        expected = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
        for step in order:
            expected = adjust[step](expected, 1 + 0.15 * (2 * row[step] - 1))
        found = change_colors(pixels, matrix).transpose(2, 0, 1)
        assert np.abs(found - 255 * expected.numpy()).max() < 1.0  # torchvision does not round, and hgld rounds once
    assert len(seen) == 6


def test_lighting_moves_along_the_principal_components():
    numbers = np.random.default_rng(0).uniform(size=(4000, 7))
    matrices = color_matrices(numbers, jitter=0.0, lighting=0.1)
    assert np.allclose(matrices[:, :, :3], np.eye(3))
    assert np.allclose(matrices[:, :, 3:6], 0)
    values = np.linalg.svd(matrices[:, :, 6] / 255 / 0.1, compute_uv=False) / np.sqrt(4000)
    assert np.allclose(values, [0.2175, 0.0188, 0.0045], rtol=0.05)


BROKEN = {
    "nothing": lambda: b"",
    "half a png": lambda: stored(make_image(90, 90, noise=20), "PNG")[:5000],
    "a jpeg but its end": lambda: SEEDS[0][: int(len(SEEDS[0]) * 0.995)],
    "most of a progressive jpeg": lambda: SEEDS[1][: int(len(SEEDS[1]) * 0.9)],
    "a bmp": lambda: stored(make_image(90, 90), "BMP"),
}


@each_row("kind", BROKEN)
def test_broken_images_fail_with_their_name_and_become_black(kind):
    good = encoded(stored(make_image(90, 90)))
    parameters = TestView(32, 32).parameters([90, 90], [90, 90])
    out = torch.full((2, 3, 32, 32), 7, dtype=torch.uint8)
    bad = encoded(BROKEN[kind]())
    with pytest.raises(InputError, match=r"train-000000\.tar: item 7: "):
        decode_batch([good, bad], parameters, out)
    faults: list[tuple[int, InputError]] = []
    decode_batch([bad, good], parameters, out, faults)
    assert [row for row, _ in faults] == [0]
    assert not out[0].any()
    assert out[1].float().std() > 0


@each_row("kind", ["JPEG", "PNG"])
def test_image_whose_size_differs_from_the_index_fails(kind):
    image = encoded(stored(make_image(90, 60), kind), orientation=6)
    out = torch.empty(1, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"upright image has 60 x 90 pixels, the index says 90 x 60"):
        decode_batch([image], TestView(32, 32).parameters([90], [60]), out)
    outside = EncodedImage(image.data, 6, (0, 0, 61, 90), "train-000000.tar: item 7")
    with pytest.raises(InputError, match=r"box \(0, 0, 61, 90\) is not inside the image of 60 x 90"):
        decode_batch([outside], TestView(32, 32).parameters([61], [90]), out)


SEEDS = [
    stored(make_image(70, 60, noise=10), quality=80),
    stored(make_image(70, 60, noise=10), quality=80, progressive=True),
    stored(make_image(70, 60).convert("CMYK")),
    stored(make_image(70, 60, noise=10), "PNG"),
    stored(make_image(70, 60).quantize(8), "PNG"),
    stored(make_image(70, 60, noise=10), "WEBP"),
    stored(make_image(70, 60), "GIF"),
]


@settings(max_examples=70)
@given(st.sampled_from(SEEDS), st.data())
def test_damaged_bytes_decode_or_fail_with_the_image_name(seed, data):
    damaged = bytearray(seed)
    places = st.integers(0, 299) | st.integers(0, len(seed) - 1)  # most damage to headers changes what is decoded
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        damaged[place] = byte
    cut = data.draw(st.just(len(seed)) | st.integers(0, len(seed)))
    image = encoded(bytes(damaged[:cut]))
    parameters = TrainView(24).parameters([70], [60], seed=0, epoch=0, positions=[0])
    out = torch.full((1, 3, 24, 24), 255, dtype=torch.uint8)
    faults: list[tuple[int, InputError]] = []
    decode_batch([image], parameters, out, faults)
    assert all(str(error).startswith("train-000000.tar: item 7: ") for _, error in faults)
    assert bool(faults) <= (not out.any())


def test_harmless_libjpeg_warnings_raise_no_error():
    seed = stored(make_image(70, 60, noise=10))
    image = encoded(seed[:-2] + b"\0\0\0\0" + seed[-2:])  # libjpeg warns of these extra bytes before the end marker
    assert np.array_equal(decoded([image], TrainView(24), "fast"), decoded([image], TrainView(24), "reference"))
    assert np.array_equal(decoded([image], TrainView(24), "fast"), decoded([encoded(seed)], TrainView(24), "fast"))


@each_row("dtype", [torch.float32, torch.bfloat16])
def test_normalize_equals_normalize_of_torchvision(dtype):
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = functional.normalize(images.double() / 255, list(mean), list(std))
    found = normalize(images, mean, std, "cpu", dtype)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found.double(), expected, atol=2e-6 if dtype == torch.float32 else 2e-2)
