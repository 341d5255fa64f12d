"""Models by name: shapes, weights, normalisation, freezing, initial projection, pooling, small networks."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from sklearn.decomposition import PCA
from torch import nn
from torch.nn.functional import avg_pool2d, batch_norm, conv2d

import hgld
from hgld.errors import ConfigError, MissingResourceError
from hgld.training.config import ModelConfig
from hgld.training.models.backbone import BackboneOptions
from hgld.training.models.backbones import build_backbone, build_model
from hgld.training.models.embedding_model import (
    CroW,
    GeM,
    RMac,
    build_pooling,
    init_projection_pca,
    rmac_regions,
)
from hgld.training.models.small_net import SmallResNet, StandardizedConv2d
from tests.rows import each_row, refused


# Any, because tests access attributes of specific backbones
def model_of(backbone, size=64, **options):
    torch.manual_seed(0)
    config = ModelConfig(**{"backbone": backbone, "pretrained": "none", "dim": 16, **options})
    return build_model(config, image_size=size)


def images(size=64, count=2, seed=1):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("backbone", "pooling", "size", "features"),
    [
        ("small", "gem", 32, 144),
        ("small-resnet", "avg", 48, 256),
        ("torchvision:resnet18", "avg", 64, 512),
        ("torchvision:regnet_y_400mf", "gem", 64, 440),
        ("torchvision:mobilenet_v3_small", "max", 64, 576),
        pytest.param("torchvision:densenet121", "avg", 64, 1024, marks=pytest.mark.slow),
        pytest.param("torchvision:swin_t", "avg", 64, 768, marks=pytest.mark.slow),
        # timm's last convolution follows the pooling, so feature maps do not use it
        ("timm:mobilenetv3_small_050", "avg", 64, 288),
        ("timm:mobilenetv3_small_050", "token", 64, 1024),
        ("timm:test_vit", "gem", 160, 64),
        ("timm:test_vit", "token", 100, 64),  # 100 is not a multiple of the patch size, so the image is padded
        pytest.param("open_clip:RN50", "token", 64, 1024, marks=pytest.mark.slow),
        pytest.param("open_clip:RN50", "gem", 64, 2048, marks=pytest.mark.slow),
    ],
)
def test_every_backbone_has_documented_output_shapes_and_gradients(backbone, pooling, size, features):
    model = model_of(backbone, size, pooling=pooling)
    assert model.features(images(size)).shape == (2, features)
    embeddings = model(images(size))
    assert embeddings.shape == (2, model.dim) == (2, 16)
    assert embeddings.dtype == torch.float32
    embeddings.square().sum().backward()
    # DistributedDataParallel fails if a parameter gets no gradient
    assert not [name for name, p in model.named_parameters() if p.grad is None]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["open_clip:ViT-S-32", "torchvision:vit_b_32"])
def test_patch_tokens_exclude_the_class_token(name):
    """Patch tokens equal the output of the last block, captured in the pass that gives the class token."""
    kept: list[torch.Tensor] = []
    model = model_of(name, pooling="avg", layer_norm=False, dim=0).eval()
    norm = model.backbone.net.ln_post if name.startswith("open_clip") else model.backbone.net.encoder.ln
    norm.register_forward_hook(lambda _, __, out: kept.append(out))
    found = model(images())
    torch.testing.assert_close(found, kept[0][:, 1:].mean(dim=1))
    assert kept[0].shape[1] == 5, "64 pixels give 2 x 2 patches of 32 pixels, and a class token"


@pytest.mark.parametrize(
    "name",
    [
        "mobilenet_v3_small",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("swin_t", "densenet121", "regnet_y_400mf")),
    ],
)
def test_feature_maps_equal_the_feature_maps_of_torchvision(name):
    whole = torchvision.models.get_model(name, weights=None).eval()
    model = model_of(f"torchvision:{name}", layer_norm=False, dim=0).eval()
    model.backbone.net.load_state_dict(whole.state_dict(), strict=False)
    seen = []
    last = whole.fc if hasattr(whole, "fc") else whole.head if hasattr(whole, "head") else whole.classifier
    last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    whole(images())
    torch.testing.assert_close(model(images()), seen[0])


@pytest.fixture(scope="module")
def timm():
    import timm  # takes a second, which the tests of other files should not wait for

    return timm


@pytest.fixture
def tiny_vit(monkeypatch):
    """Make torchvision's ViTs small."""
    whole = torchvision.models.vision_transformer._vision_transformer
    tiny: dict[str, Any] = {"num_layers": 1, "num_heads": 1, "hidden_dim": 16, "mlp_dim": 16}
    monkeypatch.setattr(
        torchvision.models.vision_transformer, "_vision_transformer", lambda **given: whole(**given | tiny)
    )


@pytest.mark.usefixtures("tiny_vit")
def test_timm_vit_accepts_other_image_sizes_and_torchvision_vit_does_not():
    assert model_of("timm:test_vit", 160, pooling="token")(images(96)).shape == (2, 16)
    with pytest.raises(ConfigError, match=r"images of 96 x 96 pixels; .* built for 64 x 64"):
        model_of("torchvision:vit_b_32", 64, pooling="token")(images(96))


@each_row(
    ("name", "size", "pooling"),
    [  # the last convolution of the first model follows the pooling
        *(("mobilenetv3_small_050", 64, pooling) for pooling in ("avg", "token")),
        *(("test_vit", 160, pooling) for pooling in ("avg", "token")),
    ],
)
def test_backbone_loads_weights_of_a_whole_timm_model(timm, tmp_path, name, size, pooling):
    whole, given = timm.create_model(name).eval(), images(size)
    maps = whole.forward_features(given)
    spatial = maps.mean((2, 3)) if maps.ndim == 4 else maps[:, 1:].mean(1)  # without the class token
    expected = spatial if pooling == "avg" else whole.forward_head(maps, pre_logits=True)
    source = whole
    for _ in range(2):  # the weights of timm, then those of hgld's own model
        torch.save(source.state_dict(), tmp_path / "w.pt")
        options = {"pooling": pooling, "layer_norm": False, "dim": 0, "pretrained": str(tmp_path / "w.pt")}
        model = model_of(f"timm:{name}", size, **options).eval()
        torch.testing.assert_close(model(given), expected)
        source = model


@pytest.mark.usefixtures("tiny_vit")
def test_vit_weights_are_interpolated_to_another_size(tmp_path):
    torch.manual_seed(0)
    whole = torchvision.models.vit_b_32(weights=None, image_size=96)
    nn.init.normal_(whole.encoder.pos_embedding)
    torch.save(whole.state_dict(), tmp_path / "vit.pth")
    model = model_of("torchvision:vit_b_32", 64, pooling="token", pretrained=str(tmp_path / "vit.pth"))
    positions = model.backbone.net.encoder.pos_embedding
    assert positions.shape == (1, 5, 16)
    assert torch.equal(positions[:, 0], whole.encoder.pos_embedding[:, 0])


def refuse(*_, **__):
    raise OSError("no route to host\nand a long tale")


@pytest.mark.slow  # open_clip takes seconds to import
def test_unknown_open_clip_models_and_failed_downloads_of_their_weights_are_refused(monkeypatch):
    monkeypatch.setattr("open_clip.factory.download_pretrained", refuse)
    with pytest.raises(ConfigError, match=r"nearest: .*ViT-B-32"):
        model_of("open_clip:ViT-B32", pooling="token")
    with pytest.raises(ConfigError, match="open_clip:RN50 has openai"):
        model_of("open_clip:RN50", pooling="token", pretrained="default")
    with pytest.raises(MissingResourceError, match=r"no route to host.*--weights FILE"):
        model_of("open_clip:RN50", pooling="token", pretrained="openai")


@each_row("backbone", ["torchvision:resnet18", "timm:resnet10t.c3_in1k"])
def test_pretrained_weights_that_cannot_be_downloaded_raise_missing_resource_error(monkeypatch, backbone):
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", refuse)
    with pytest.raises(MissingResourceError) as caught:
        model_of(backbone, pretrained="default")
    assert all(text in str(caught.value) for text in ("no route to host", "--weights FILE", "none"))
    assert "long tale" not in str(caught.value)


test_invalid_backbones_are_refused = refused(
    lambda backbone, options: model_of(backbone, **options),
    [
        ("resnet50", {}, "expected small, small-resnet, torchvision:NAME"),
        ("torchvision:resnet5", {}, "nearest: .*resnet50"),
        ("timm:vit_small_patch16_225", {}, "nearest: .*vit_small_patch16_224"),
        ("small", {"pooling": "token"}, "use another pooling"),
        ("torchvision:resnet18", {"pooling": "token"}, "has no token"),
        ("small", {"pretrained": "imagenet"}, "'imagenet'"),
        ("torchvision:resnet18", {"pretrained": "IMAGENET1K_V9"}, "one of IMAGENET1K_V1"),
        ("timm:resnet18.a9_in1k", {}, r"a9_in1k.*Pretrained tags .*resnet18\.a1_in1k"),
        ("timm:resnet18.a1_in1k", {"pretrained": "a2_in1k"}, "the name has the tag a1_in1k"),
    ],
    ConfigError,
)


def test_timm_tag_selects_the_weights(timm, monkeypatch):
    asked = []
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained, **more: asked.append((name, pretrained)) or create(name, **more)
    )
    for backbone, tag in (("timm:resnet10t", "c3_in1k"), ("timm:resnet10t.c3_in1k", "default")):
        model_of(backbone, pretrained=tag)
        assert asked[-1] == ("resnet10t.c3_in1k", True)
    model_of("timm:resnet10t", pretrained="none")
    assert asked[-1] == ("resnet10t", False)


def test_frozen_batch_norm_does_not_change():
    model = model_of("torchvision:resnet18", freeze_batch_norm=True).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    model(images()).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert model.backbone.net.bn1.weight.grad is None


def test_frozen_backbone_gets_no_gradients_until_unfrozen():
    model = model_of("small-resnet").train()
    model.freeze_backbone(True)
    model.train()
    assert not model.backbone.training
    model(images()).sum().backward()
    groups = model.parameter_groups()
    assert all(p.grad is None for _, p in groups["backbone"])
    assert all(p.grad is not None for _, p in groups["head"])
    model.freeze_backbone(False)
    assert model.backbone.training
    assert all(p.requires_grad for _, p in groups["backbone"])


@each_row("layer_norm", [False, True])
def test_projection_starts_as_pca_of_training_features(layer_norm):
    pooled = torch.randn(80, 144, generator=torch.Generator().manual_seed(0)).abs()
    config = ModelConfig(backbone="small", dim=16, projection="pca", layer_norm=layer_norm)
    model = build_model(config, image_size=32, features=lambda built: pooled.to(next(built.parameters()).device))
    normed = nn.functional.layer_norm(pooled, (144,)) if layer_norm else pooled
    expected = torch.from_numpy(PCA(16, svd_solver="full").fit_transform(normed.double().numpy())).float()
    found = model.projection(model.norm(pooled))
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-3, atol=1e-4)


test_invalid_pca_projections_are_refused = refused(
    lambda options, features: init_projection_pca(model_of("small", **options), features),
    [
        ({"dim": 0}, torch.randn(200, 144), "with dim 0 there is none"),
        ({"dim": 8}, torch.randn(8, 144), "at least 9 items"),
        ({"dim": 8}, torch.full((20, 144), torch.nan), "not finite"),
    ],
    ConfigError,
)


@pytest.mark.slow
def test_clip_model_name_may_contain_slashes(tmp_path):
    """A slash in other model names separates the tag of the weights."""
    import open_clip

    sides = {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16}
    texts = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 1, "layers": 1}
    config = {"model_cfg": {"embed_dim": 16, "vision_cfg": sides, "text_cfg": texts}, "preprocess_cfg": {}}
    folder = tmp_path / "a" / "clip"
    folder.mkdir(parents=True)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    name = f"local-dir:{folder}"
    own = open_clip.create_model(name, load_weights=False)
    save_file(own.state_dict(), folder / "open_clip_model.safetensors")
    options = {"load_weights": True, "token": True, "image_size": None}
    made = build_backbone(f"open_clip:{name}", BackboneOptions("default", **options))
    images = torch.randn(2, 3, 32, 32)
    visual: Any = own.eval().visual
    torch.testing.assert_close(made.module.eval()(images), visual(images))
    assert hgld.load_model(f"open_clip:{name}", device="cpu").encode(np.zeros((40, 40, 3), np.uint8)).shape == (1, 16)
    with pytest.raises(ConfigError, match="has its own weights: default or none"):
        build_backbone(f"open_clip:{name}", BackboneOptions("openai", **options))


# -- pooling --


def maps(seed=0):
    return torch.rand(2, 5, 3, 4, generator=torch.Generator().manual_seed(seed)).double() + 0.01


@given(p=st.floats(0.2, 30), seed=st.integers(0, 50))
def test_gem_equals_generalized_mean_reference(p, seed):
    values = maps(seed)
    slow = torch.tensor(
        [[(sum(v**p for v in m.flatten().tolist()) / 12) ** (1 / p) for m in image] for image in values]
    )
    torch.testing.assert_close(GeM(p)(values).detach(), slow.float(), rtol=1e-4, atol=1e-6)


def test_gem_is_finite_for_extreme_features():
    extreme = torch.tensor([1e-20, 1e20]).view(1, 2, 1, 1).expand(1, 2, 2, 2).clone().requires_grad_()
    pool = GeM(10.0)
    pooled = pool(extreme)
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert extreme.grad is not None
    assert extreme.grad.isfinite().all()
    assert pool.p.grad is not None
    assert pool.p.grad.isfinite()


def crow_of(features):
    """CroW of one (F, H, W) map, position by position (Kalantidis et al. 2016, Eqs. 2 to 5)."""
    channels, height, width = features.shape
    total = [[sum(features[k][i][j] for k in range(channels)) for j in range(width)] for i in range(height)]
    norm = sum(v * v for row in total for v in row) ** 0.5
    active = [sum(v > 0 for row in channel.tolist() for v in row) / (height * width) for channel in features]
    pooled = []
    for k in range(channels):
        weight = np.log((channels * 1e-6 + sum(active)) / (1e-6 + active[k]))
        places = [(i, j) for i in range(height) for j in range(width)]
        pooled.append(weight * sum((total[i][j] / norm) ** 0.5 * features[k][i][j] for i, j in places))
    return pooled


@given(seed=st.integers(0, 200), height=st.integers(1, 6), width=st.integers(1, 6))
def test_crow_equals_position_by_position_reference(seed, height, width):
    values = torch.randn(2, 4, height, width, generator=torch.Generator().manual_seed(seed)).double()
    values[:, 0] = values[:, 0].abs() + 0.01
    slow = torch.tensor([crow_of(image.relu()) for image in values], dtype=torch.float64)
    torch.testing.assert_close(CroW()(values).double(), slow, rtol=1e-4, atol=1e-5)
    # a transformer's row of tokens has the same result
    torch.testing.assert_close(CroW()(values.flatten(2).unsqueeze(-1)), CroW()(values))


@given(height=st.integers(1, 40), width=st.integers(1, 40))
def test_rmac_regions_are_inside_the_map_and_overlap_as_near_to_40_per_cent_as_possible(height, width):
    short, long = sorted((height, width))
    if long > 8 * short:
        return
    regions = rmac_regions(height, width)
    assert all(0 <= top <= height - side and 0 <= left <= width - side for top, left, side in regions)
    if short >= 4:  # so that the three scales have different sides
        first = [(top, left) for top, left, side in regions if side == short]
        overlaps = {n: short - (long - short) / n for n in range(1, 16)}
        best = min(abs(overlap - 0.4 * short) for overlap in overlaps.values())
        got = 0.4 * short if len(first) == 1 else overlaps[len(first) - 1]
        assert abs(got - 0.4 * short) <= best + 1e-9


@each_row("shape", [(7, 7), (5, 9), (12, 4), (1, 3), (32, 24)])
def test_rmac_equals_region_by_region_reference(shape):
    values = torch.rand(2, 5, *shape, generator=torch.Generator().manual_seed(0)).double()
    slow = np.zeros((2, 5))
    for top, left, side in rmac_regions(*shape):
        for row, image in enumerate(values.numpy()):
            largest = np.array([channel[top : top + side, left : left + side].max() for channel in image])
            slow[row] += largest / np.sqrt((largest**2).sum())
    np.testing.assert_allclose(RMac()(values).numpy(), slow, rtol=1e-5)


def test_rmac_of_a_square_map_has_fourteen_regions_and_refuses_a_row_of_tokens():
    assert len(rmac_regions(14, 14)) == 1 + 4 + 9
    assert rmac_regions(4, 4)[:3] == [(0, 0, 4), (0, 0, 2), (0, 2, 2)]
    assert [r for r in rmac_regions(10, 16) if r[2] == 10] == [(0, 0, 10), (0, 6, 10)]
    with pytest.raises(ConfigError, match="196 x 1"):
        RMac()(torch.ones(1, 3, 196, 1))


@each_row("kind", ["crow", "rmac"])
def test_poolings_of_dead_features_are_zero_with_a_finite_gradient(kind):
    dead = torch.zeros(2, 3, 4, 4, requires_grad=True)
    pool = build_pooling(kind, 3.0, True)
    assert pool is not None
    pooled = pool(dead)
    pooled.sum().backward()
    assert not pooled.any()
    assert dead.grad is not None
    assert dead.grad.isfinite().all()


# -- the small networks, against slow reference implementations --


def test_standardized_kernels_have_mean_0_and_norm_1():
    torch.manual_seed(0)
    convolution = StandardizedConv2d(5, 7, 3).double()
    for kernel, found in zip(convolution.weight.detach(), convolution.kernels(), strict=True):
        centred = kernel - sum(kernel.flatten().tolist()) / kernel.numel()
        norm = sum(value**2 for value in centred.flatten().tolist()) ** 0.5
        torch.testing.assert_close(found, centred / norm, rtol=1e-7, atol=1e-9)


def test_small_resnet_equals_a_reference_in_functional_torch():
    torch.manual_seed(0)
    net = SmallResNet(4).double().train()
    images = torch.randn(6, 3, 37, 45, dtype=torch.float64)
    expected, weights = images, iter(net.state_dict().items())

    def normed(maps, stride):
        kernel, scale, shift = (next(weights)[1] for _ in range(3))
        for _ in range(3):
            next(weights)  # skip the running statistics, which training does not use
        maps = conv2d(maps, kernel, None, stride, padding=kernel.shape[-1] // 2)
        return batch_norm(maps, None, None, scale, shift, training=True)

    expected = normed(expected, 2).relu()
    for stage in range(4):
        stride = 2 if stage else 1
        branch = normed(normed(expected, stride).relu(), 1)
        short = normed(avg_pool2d(expected, 2, ceil_mode=True), 1) if stage else expected
        expected = (branch + short).relu()
    assert expected.shape == (6, 32, 3, 3)
    torch.testing.assert_close(net(images), expected)
