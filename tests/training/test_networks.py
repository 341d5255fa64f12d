"""Pretrained networks use the preprocessing of their library and give the library's embeddings."""

import hashlib
import io
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch.nn.functional import normalize
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

from hgld import open_dataset
from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError, MissingResourceError
from hgld.training.config import ModelConfig
from hgld.training.inference.embedder import trained_embedder
from hgld.training.models.backbones import build_model
from hgld.training.models.networks import Network, build_network, embed_texts
from tests.hgld.small_dataset import Item, write_dataset
from tests.rows import each_row, refused

COLORS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # means and deviations of ImageNet
SIZES = [(300, 240), (240, 300), (260, 260)]


def picture(seed, width, height):
    """Return a PNG with detail at every scale."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def data(module_path):
    folder = module_path / "large"
    items = [Item((i, 0), "test", picture(i, *size), *size, suffix="png") for i, size in enumerate(SIZES)]
    write_dataset(folder, items)
    return folder


def embedded(network, data, **options):
    with trained_embedder(network, device="cpu", data=str(data), **options) as embedder:
        return embedder.embed_dataset(open_dataset(data, "test"))


def by_library(data, transform, model):
    """Reference implementation: the library's own transform and model, one image at a time."""
    dataset = open_dataset(data, "test")
    with torch.no_grad():
        rows = [model(transform(dataset.image(i))[None]).flatten(1) for i in range(len(dataset))]
    return normalize(torch.cat(rows), dim=1)


def near(found, expected):
    """Compare with a tolerance, because the libraries may round a resized pixel to different integers."""
    assert found.shape == expected.shape
    assert float((found * expected).sum(dim=1).min()) > 0.9995


def test_torchvision_preprocessing_follows_the_file_name_of_the_weights(data, tmp_path):
    weights = torchvision.models.MobileNet_V3_Small_Weights.IMAGENET1K_V1
    torch.manual_seed(3)
    whole = torchvision.models.mobilenet_v3_small(weights=None).eval()
    file = tmp_path / weights.url.rpartition("/")[2]
    torch.save(whole.state_dict(), file)
    vars(whole)["_modules"]["classifier"] = torch.nn.Identity()
    found = embedded(Network("torchvision:mobilenet_v3_small", str(file)), data)
    near(found, by_library(data, weights.transforms(), whole))


@pytest.mark.slow
def test_timm_network_uses_the_preprocessing_of_timm(data, tmp_path):
    from timm import create_model
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    torch.manual_seed(3)
    whole: Any = create_model("test_vit", num_classes=10).eval()
    torch.save(whole.state_dict(), tmp_path / "w.pt")
    transform = create_transform(**resolve_model_data_config(whole), is_training=False)
    whole.reset_classifier(0)
    near(embedded(Network("timm:test_vit", str(tmp_path / "w.pt")), data), by_library(data, transform, whole))


@pytest.mark.slow
def test_open_clip_network_uses_the_preprocessing_and_activation_of_open_clip(data, tmp_path):
    import open_clip

    torch.manual_seed(3)
    clip, _, transform = open_clip.create_model_and_transforms("RN50", force_quick_gelu=True)
    torch.save(clip.state_dict(), tmp_path / "w.pt")
    found = embedded(Network("open_clip:RN50/openai", str(tmp_path / "w.pt")), data)
    near(found, by_library(data, transform, clip.eval().visual))
    assert build_network(Network("open_clip:RN50/openai", "none"))[1] == TestView(224, 224, interpolation="bicubic")
    with pytest.raises(ConfigError, match="pretrained is 'opanai'; open_clip:RN50 has openai"):
        build_network(Network("open_clip:RN50/opanai"))
    with pytest.raises(ConfigError, match="Omit --pooling"):
        embed_texts(Network("open_clip:RN50/openai", "none", "avg"), ["a lake"])


def test_unsupported_preprocessing_requires_resize_mode_and_size(data, monkeypatch):
    network = Network("torchvision:mobilenet_v3_small", "none")
    model, _ = build_network(network)
    monkeypatch.setattr("hgld.training.inference.embedder.build_network", lambda *_: (model, None))
    with pytest.raises(
        ConfigError, match=r"mobilenet_v3_small: its library prepares images .* --resize-mode and --size"
    ):
        embedded(network, data, size=64)
    assert embedded(network, data, size=64, resize_mode="squash").shape == (3, 576)


# -- raw pixels --


def test_raw_pixel_embeddings_are_centred_on_the_dataset_mean(data):
    dataset = open_dataset(data, "test")
    transform = Compose([Resize((32, 32)), ToTensor(), Normalize(*COLORS)])
    rows = torch.stack([transform(dataset.image(i)).flatten() for i in range(len(dataset))])
    expected = normalize(rows - rows.mean(dim=0), dim=1)
    torch.testing.assert_close(embedded(Network("pixels"), data), expected, atol=5e-3, rtol=0)


# -- ONNX: small graphs made node by node --


def onnx_file(path, nodes, *, image=("b", 3, "h", "w"), made=("b", 3), kind=TensorProto.FLOAT, more=()):
    """Write an ONNX graph with input ``images`` and output ``made``, and return its network."""
    taken = helper.make_tensor_value_info("images", kind, image)
    given = helper.make_tensor_value_info("made", TensorProto.FLOAT, made)
    graph = helper.make_graph(nodes, "g", [taken], [given], list(more))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return Network(f"onnx:{path}")


def mean_over(axes, image="images"):
    return helper.make_node("ReduceMean", [image], ["made"], axes=axes, keepdims=0)


def means(data, side, colors=COLORS):
    """Return (N, 3) normalised mean colours of the central squares of the images."""
    transform = Compose([Resize(side * 256 // 224), CenterCrop(side), ToTensor(), Normalize(*colors)])
    return by_library(data, transform, lambda images: images.mean((2, 3)))


CAST = [helper.make_node("Cast", ["images"], ["cast"], to=TensorProto.FLOAT), mean_over([2, 3], "cast")]


@each_row(
    ("image", "kind", "size"),
    [
        (("b", 3, "h", "w"), TensorProto.FLOAT, 224),
        ((1, 3, 56, 56), TensorProto.FLOAT, 56),  # one image at a time
        (("b", 3, 56, 56), TensorProto.FLOAT16, 56),
    ],
)
def test_onnx_networks_get_their_input_size_and_dtype(data, tmp_path, image, kind, size):
    network = onnx_file(tmp_path / "m.onnx", CAST, image=image, kind=kind)
    found = embedded(network, data, batch_size=2)
    torch.testing.assert_close(found, means(data, size), atol=0.02, rtol=0)


def test_onnx_feature_maps_and_tokens_use_the_requested_pooling(data, tmp_path):
    kernel = numpy_helper.from_array(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1), "kernel")
    passed = helper.make_node("Conv", ["images", "kernel"], ["made"])
    maps = onnx_file(tmp_path / "map.onnx", [passed], image=("b", 3, 56, 56), made=("b", 3, 56, 56), more=[kernel])
    expected = means(data, 56)
    for pooling in ("", "avg"):
        found = embedded(Network(maps.name, "default", pooling), data)
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0)
    assert not torch.allclose(embedded(Network(maps.name, "default", "max"), data), expected, atol=0.05)
    with pytest.raises(ConfigError, match="is no vector; use another pooling"):
        embedded(Network(maps.name, "default", "token"), data)
    shape = numpy_helper.from_array(np.array([0, 3, -1]), "shape")
    nodes = [
        helper.make_node("Reshape", ["images", "shape"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["made"], perm=[0, 2, 1]),
    ]
    tokens = onnx_file(tmp_path / "t.onnx", nodes, image=("b", 3, 56, 56), made=("b", "n", 3), more=[shape])
    torch.testing.assert_close(embedded(Network(tokens.name, "default", "avg"), data), expected, atol=0.02, rtol=0)
    assert embedded(tokens, data).shape == (3, 3), "the embedding is not the first token"


def test_exported_network_uses_the_preprocessing_in_its_record(data, tmp_path):
    network = onnx_file(tmp_path / "m.onnx", CAST, image=("b", 3, 28, 28), kind=TensorProto.UINT8)
    record = tmp_path / "m.onnx.json"
    record.write_text('{"view": {"size": 28, "resize": 32, "resize_mode": "crop"}}', encoding="utf-8")
    found = embedded(network, data)
    torch.testing.assert_close(found, means(data, 28, ((0, 0, 0), (1, 1, 1))), atol=0.02, rtol=0)
    record.write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match=r"m\.onnx\.json: not a record of hgld export .*Remove or rename it"):
        build_network(network)


def outside(tmp_path):
    """Return an ONNX network whose weights are in an external file."""
    kernel = numpy_helper.from_array(np.zeros((3, 3, 1, 1), np.float32), "kernel")
    passed = helper.make_node("Conv", ["images", "kernel"], ["made"])
    network = onnx_file(tmp_path / "out.onnx", [passed], made=("b", 3, "h", "w"), more=[kernel])
    model = onnx.load(tmp_path / "out.onnx")
    onnx.save(model, tmp_path / "out.onnx", save_as_external_data=True, location="secret", size_threshold=0)
    return network


test_invalid_networks_are_refused = refused(
    lambda make, *, tmp_path: build_network(make(tmp_path)),
    [
        (lambda place: Network(f"onnx:{place}/none.onnx"), MissingResourceError, "there is no such file"),
        (
            lambda place: (place / "t.onnx").write_bytes(b"no network") and Network(f"onnx:{place}/t.onnx"),
            InputError,
            "cannot be read as an ONNX network",
        ),
        (outside, InputError, "Expected one file with its weights inside"),
        (
            lambda place: onnx_file(place / "m.onnx", [mean_over([2, 3])], image=("b", 3, 32, 48)),
            ConfigError,
            "its input images have 48 x 32 pixels; expected squares",
        ),
        (
            lambda place: onnx_file(place / "m.onnx", [mean_over([1])], image=("b", 3), made=("b",)),
            InputError,
            r"its inputs are images tensor\(float\) .*; expected one input, images \(B, 3, H, W\) of float32",
        ),
        (
            lambda place: Network(onnx_file(place / "m.onnx", [mean_over([2, 3])]).name, "w.pt"),
            ConfigError,
            "holds its own weights",
        ),
        (lambda place: Network("pixels", pooling="avg"), ConfigError, "neither weights nor a pooling"),
        (lambda place: Network("resnet50"), ConfigError, "expected small, small-resnet, .*, onnx:FILE or pixels"),
    ],
)


def test_onnx_network_refuses_unsupported_image_sizes(data, tmp_path):
    network = onnx_file(tmp_path / "m.onnx", [mean_over([2, 3])], image=("b", 3, 28, 28))
    with pytest.raises(ConfigError, match=r"does not take images of shape \(\d, 3, \d+, 28\)"):
        embedded(network, data, resize_mode="longest")


def test_onnx_output_named_embeddings_is_used(data, tmp_path):
    network = onnx_file(tmp_path / "m.onnx", [mean_over([2, 3])], image=("b", 3, 56, 56))
    expected, model = embedded(network, data), onnx.load(tmp_path / "m.onnx")
    model.graph.node.append(helper.make_node("Neg", ["made"], ["embeddings"]))
    model.graph.output.append(helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ("b", 3)))
    onnx.save(model, tmp_path / "m.onnx")
    torch.testing.assert_close(embedded(network, data), -expected, atol=1e-6, rtol=0)


def test_onnx_network_stores_the_digest_of_its_file(tmp_path):
    network = onnx_file(tmp_path / "m.onnx", [mean_over([2, 3])])
    digest = build_network(network)[0].state_dict()["backbone.digest"]
    assert bytes(digest.tolist()) == hashlib.sha256((tmp_path / "m.onnx").read_bytes()).digest()


@each_row("name", ["onnx:m.onnx", "pixels"])
def test_onnx_networks_and_raw_pixels_cannot_be_trained(name):
    with pytest.raises(ConfigError, match=f"backbone {name} cannot be trained; use it as --model"):
        build_model(ModelConfig(backbone=name), image_size=32)
