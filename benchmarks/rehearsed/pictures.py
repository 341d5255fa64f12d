"""Images of synthetic landmarks, 32 px: class features are visible, and nuisances vary per image.

- Natural landmarks have soft waves with clouds, human-made landmarks have waves with hard edges.
- The group sets frequency and direction of two waves. Their phases are random, so raw pixels are not enough.
- The landmark sets three colours, and a third, finer wave.
- Nuisances are colour cast, contrast, phases, an occluding patch, and noise.
"""

import numpy as np
import simplejpeg

from rehearsed.world import World

SIDE = 32
_GRID = (np.arange(SIDE, dtype=np.float32) - SIDE / 2) / SIDE
_SMOOTH = np.float32(1.2)


class Pictures:
    """Painter that draws many places of a world at once."""

    def __init__(self, world: World) -> None:
        rng = world.rng(3)
        groups, places = len(world.groups), len(world.kinds)
        angle = rng.uniform(0, np.pi, (groups, 2))
        cycles = rng.uniform(2.0, 7.0, (groups, 2))
        self._group_waves = _waves(angle, cycles)
        self._place_waves = _waves(rng.uniform(0, np.pi, (places, 1)), rng.uniform(6.0, 11.0, (places, 1)))
        # Keep the landmark's wave weak, so that group waves stay visible.
        dark, light, accent = ((0.0, 0.4), (0.5, 1.0), (0.0, 1.0))
        self._colours = np.stack([rng.uniform(*ends, (places, 3)) for ends in (dark, light, accent)], 1).astype(
            np.float32
        )
        self._is_natural = np.array([top == "natural" for _, top in world.groups])
        self._groups = world.place_groups

    def draw(self, places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return images of these places, (N, 32, 32, 3) uint8."""
        count, group = len(places), self._groups[places]
        waves = np.concatenate([self._group_waves[group], self._place_waves[places]], axis=1)  # (N, 3, 2)
        phase = rng.uniform(0, 2 * np.pi, (count, 3, 1, 1)).astype(np.float32)
        shape = (count, 3, SIDE, SIDE)
        angles = waves[..., 0, None, None] * _GRID + waves[..., 1, None, None] * _GRID[:, None] + phase
        value = np.sin(np.broadcast_to(angles, shape))
        hard = ~self._is_natural[group]
        value[hard] = np.clip(8 * value[hard], -1, 1)
        clouds = np.repeat(np.repeat(rng.random((count, 4, 4), np.float32), 8, 1), 8, 2)
        ground = value[:, 0] * np.where(hard[:, None, None], np.float32(1), _SMOOTH * clouds)
        mixed = (0.5 + 0.25 * (ground + value[:, 1]))[..., None]
        dark, light, accent = (self._colours[places, i][:, None, None] for i in range(3))
        fine = np.maximum(value[:, 2], 0)[..., None] * np.float32(0.4)
        picture = (dark + (light - dark) * mixed) * (1 - fine) + accent * fine
        cast = rng.uniform(0.65, 1.35, (count, 1, 1, 3)).astype(np.float32)
        gain = rng.uniform(0.6, 1.1, (count, 1, 1, 1)).astype(np.float32)
        picture = np.float32(0.5) + (picture * cast - np.float32(0.5)) * gain
        self._cover(picture, rng)
        picture += rng.standard_normal((count, SIDE, SIDE, 1), np.float32) * np.float32(0.04)
        return (picture.clip(0, 1) * 255).astype(np.uint8)

    @staticmethod
    def _cover(picture: np.ndarray, rng: np.random.Generator) -> None:
        """Cover each image with a plain patch of 6 to 14 px."""
        side = rng.integers(6, 15, (len(picture), 2))
        corner = (rng.random((len(picture), 2)) * (SIDE - side)).astype(int)
        paint = rng.random((len(picture), 3), np.float32)
        for one, (top, left), (height, width), colour in zip(picture, corner, side, paint, strict=True):
            one[top : top + height, left : left + width] = colour


def _waves(angle: np.ndarray, cycles: np.ndarray) -> np.ndarray:
    return (2 * np.pi * cycles[..., None] * np.stack([np.cos(angle), np.sin(angle)], -1)).astype(np.float32)


def jpeg(picture: np.ndarray) -> bytes:
    """Encode an image as JPEG of some 1.1 kB."""
    return simplejpeg.encode_jpeg(picture, quality=70, colorspace="RGB", colorsubsampling="420", fastdct=True)
