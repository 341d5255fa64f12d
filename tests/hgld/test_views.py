import math
import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

from hgld.data.views import TestView, TrainView, erase, philox, places, random_rectangles, uniforms
from hgld.errors import ConfigError
from tests.rows import refused


def test_philox_gives_the_published_numbers():
    """The numbers are a test vector of philox4x32-10 in Random123."""
    counter = np.array([[0x243F6A88], [0x85A308D3], [0x13198A2E], [0x03707344]], dtype=np.uint64)
    words = philox(counter, (0xA4093822, 0x299F31D0))
    assert words[:, 0].tolist() == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_uniforms_depend_on_seed_epoch_and_position_alone():
    positions = np.array([5, 0, 1 << 40, -3, 5])
    numbers = uniforms(7, 2, positions, 8)
    assert np.array_equal(numbers[0], numbers[4])
    assert np.array_equal(uniforms(7, 2, positions[2:3], 4)[0], numbers[2, :4])
    others = [uniforms(8, 2, positions, 8), uniforms(7, 3, positions, 8), uniforms(7 + (1 << 32), 2, positions, 8)]
    assert all(not np.isclose(numbers, other).any() for other in others)
    assert len(np.unique(numbers[:4])) == 32


test_seeds_out_of_bounds_are_refused = refused(
    lambda seed, epoch: uniforms(seed, epoch, np.zeros(1, dtype=np.int64), 4),
    [(-1, 0), (1 << 64, 0), (0, -1), (0, 1 << 32)],
    ConfigError,
    r"expected 0 <= (seed|epoch) <",
)


def slow_crop(width, height, numbers, scale, ratio):
    """Return RandomResizedCrop.get_params of torchvision for given random numbers: ten areas, ten ratios, left, top."""
    for share, shape in zip(numbers[:10], numbers[10:20], strict=True):
        area = height * width * (scale[0] + share * (scale[1] - scale[0]))
        aspect = math.exp(math.log(ratio[0]) + shape * (math.log(ratio[1]) - math.log(ratio[0])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(numbers[20] * (width - w + 1)), int(numbers[21] * (height - h + 1)), w, h
    w, h = width, height
    if width / height < min(ratio):
        h = round(w / min(ratio))
    elif width / height > max(ratio):
        w = round(h * max(ratio))
    return (width - w) // 2, (height - h) // 2, max(w, 1), max(h, 1)


SIDES = st.one_of(st.integers(1, 30), st.integers(1, 5000))


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=8), st.integers(0, 2**64 - 1), st.integers(0, 99))
def test_crops_equal_torchvisions_algorithm(sizes, seed, epoch):
    view = TrainView(32, scale=(0.3, 1.0))
    positions = np.arange(len(sizes)) * 7
    widths, heights = zip(*sizes, strict=True)
    found = view.parameters(widths, heights, seed=seed, epoch=epoch, positions=positions)
    numbers = uniforms(seed, epoch, positions, 24)
    for row, (width, height) in enumerate(sizes):
        left, top, w, h = found.crop[row].tolist()
        assert (left, top, w, h) == slow_crop(width, height, numbers[row].tolist(), view.scale, view.ratio)
        assert 0 <= left < left + w <= width
        assert 0 <= top < top + h <= height
    assert found.flip.tolist() == (numbers[:, 22] < 0.5).tolist()


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=8), st.integers(1, 40), st.integers(0, 20))
def test_squared_crops_are_random_squares_of_the_whole_image(sizes, size, more):
    view = TrainView(size, resize=size + more)
    found = view.parameters(*zip(*sizes, strict=True), seed=0, epoch=0, positions=places(0, len(sizes)))
    assert found.crop.tolist() == [[0, 0, *one] for one in sizes]
    assert (found.resized == size + more).all()
    assert ((found.window >= 0) & (found.window <= more)).all()


def test_squared_crops_reach_every_position_equally_often():
    view = TrainView(8, resize=11)
    found = view.parameters([30] * 4000, [20] * 4000, seed=0, epoch=0, positions=places(0, 4000)).window
    counts = np.bincount(found @ [4, 1], minlength=16)
    assert abs(counts - 250).max() < 5 * 15.3  # 15.3: standard deviation of each binomial count


def test_view_parameters_do_not_depend_on_other_items_of_the_batch():
    view = TrainView(64, jitter=0.3, lighting=0.1)
    sizes = np.random.default_rng(0).integers(20, 500, (12, 2))
    whole = view.parameters(*sizes.T, seed=1, epoch=4, positions=places(9, 12))
    for process in range(3):
        rows = slice(4 * process, 4 * process + 4)
        part = view.parameters(*sizes[rows].T, seed=1, epoch=4, positions=places(9, 4, 4 * process))
        for name in ("sizes", "crop", "resized", "window", "flip", "colors"):
            assert np.array_equal(getattr(part, name), getattr(whole, name)[rows]), name


def test_positions_of_an_epoch_are_distinct():
    slots = [places(step, 8, 8 * process) for step in range(50) for process in range(4)]
    assert len(np.unique(np.concatenate(slots))) == 50 * 32


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 40), st.integers(0, 20))
def test_the_test_view_has_torchvisions_sizes(width, height, size, more):
    found = TestView(size, size + more).parameters([width], [height])
    left, top, kept_width, kept_height = found.crop[0].tolist()
    assert abs(2 * left + kept_width - width) <= 1
    assert abs(2 * top + kept_height - height) <= 1
    if max(width, height) <= 4 * min(width, height):
        assert (kept_width, kept_height) == (width, height)
    resized = functional.resize(torch.zeros(1, kept_height, kept_width), [size + more])
    assert found.resized[0].tolist() == [resized.shape[2], resized.shape[1]]
    assert found.window[0].tolist() == [round((side - size) / 2.0) for side in found.resized[0].tolist()]


@given(SIDES, SIDES, st.integers(1, 2000), st.integers(1, 5_000_000))
def test_whole_images_keep_their_aspect_ratio_within_the_pixel_limit(width, height, size, most):
    view = TestView(size, resize_mode="longest")
    assert view.parameters([width], [height]).crop.tolist() == [[0, 0, width, height]]
    short = max(1, int(size * min(width, height) / max(width, height)))  # as Resize(largest=True) in MultiGrain
    assert view.shape([width], [height]) == ((short, size) if width > height else (size, short))
    assert TestView(size, resize_mode="squash").shape([width], [height]) == (size, size)
    limited = TestView(size, resize_mode="original", max_pixels=most)
    high, wide = limited.shape([width], [height])
    if width * height <= most:
        assert (wide, high) == (width, height)
    else:
        assert wide * high <= max(most, wide, high)  # a narrow strip keeps a width of one pixel
        assert (wide + 1) * (high + 1) > most * min(width, height) / (min(width, height) + 1) / 2
    assert limited.count_reduced([width], [height]) == (width * height > most)


def test_scaled_original_has_the_scaled_size():
    view = TestView(resize_mode="original").scaled(0.5)
    assert view.shape([101], [60]) == (30, 50)
    assert view.scaled(2).shape([101], [60]) == (60, 101)


def test_erased_rectangles_have_the_documented_share_area_and_ratio():
    count, size = 4000, 64
    rectangles = random_rectangles(np.random.default_rng(0).uniform(size=(count, 5)), 0.3, size)
    left, top, width, height = rectangles[rectangles[:, 2] > 0].T
    assert abs(len(left) / count - 0.3) < 0.03
    assert left.min() == top.min() == 0
    # rectangles may touch the image edges, but not cross them
    assert (left + width).max() == (top + height).max() == size
    inside = np.maximum(width, height) < size
    area, ratio = width * height / size**2, width / height
    assert (area[inside].min(), area[inside].max()) == pytest.approx((0.02, 0.33), abs=0.01)
    assert ratio.min() == pytest.approx(0.3, rel=0.1)
    assert np.median(area) == pytest.approx(0.175, abs=0.015)
    assert np.median(ratio) == pytest.approx(1, rel=0.05)


def test_erase_changes_only_the_rectangle():
    pixels = np.arange(8 * 9 * 3, dtype=np.uint8).reshape(8, 9, 3)
    found = erase(pixels, np.array([2, 3, 4, 5]))
    expected = pixels.copy()
    expected[3:8, 2:6] = [124, 116, 104]
    assert np.array_equal(found, expected)
    assert erase(pixels, np.array([2, 3, 0, 5])) is pixels
    assert np.array_equal(pixels.ravel(), np.arange(216, dtype=np.uint8))  # erase() does not change its argument


def test_colours_policies_and_erasing_change_no_other_random_numbers():
    sizes, where = np.full((50, 2), 80), places(3, 50)
    options = {
        "colors": {"jitter": 0.2, "lighting": 0.1},
        "policies": {"autoaugment": True},
        "erased": {"erasing": 0.5},
    }
    views = [TrainView(32, **more) for more in ({}, *options.values())]
    plain, *others = [view.parameters(*sizes.T, seed=1, epoch=0, positions=where) for view in views]
    for name, varied in zip(options, others, strict=True):
        assert np.array_equal(plain.crop, varied.crop), name
        assert np.array_equal(plain.flip, varied.flip), name
        assert getattr(plain, name) is None
        assert len(getattr(varied, name)) == 50


test_invalid_views_are_refused = refused(
    operator.call,
    [
        (lambda: TrainView(0), "size of a view is 0; expected 1 to 16384 pixels."),
        (lambda: TrainView(32, resize=31), "resize of a view is 31; expected 0 or at least 32, the size."),
        (lambda: TrainView(scale=(0.0, 1.0)), "scale of a view is (0.0, 1.0); expected a smallest and a largest share"),
        (lambda: TrainView(flip=1.5), "flip of a view is 1.5; expected a probability."),
        (lambda: TestView(resize_mode="whole"), "resize_mode of a view is whole; expected one of"),
        (lambda: TestView(resize_mode="original", max_pixels=0), "max_pixels of a view is 0; expected 1 to 100000000."),
        (lambda: TestView(resize_mode="original").scaled(9), "scale of a view is 9.0; expected more than 0, and image"),
        (lambda: TestView(224, 200), "resize of a view is 200; expected 224 (the size) to 16384 pixels."),
    ],
    ConfigError,
)


def test_invalid_image_sizes_are_refused():
    with pytest.raises(ConfigError, match=r"image 1 of \[0, 5\] pixels"):
        TestView(4, 4).parameters([5, 0], [5, 5])
    with pytest.raises(ConfigError, match=r"shapes \[\(2,\), \(1,\), \(2,\)\]"):
        TrainView(4).parameters([5, 6], [5], seed=0, epoch=0, positions=[0, 1])
