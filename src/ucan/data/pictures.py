"""Picture files: which are read, how they are opened safely, decoded, resized and cropped."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch

from ucan.errors import InvalidInput

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# Of strangers' pictures only these formats are decoded: others (PostScript among them) can make a decoder run programs.
FORMAT_NAMES = "PNG, JPEG, WebP, BMP, PPM, TIFF"
FORMATS = tuple(FORMAT_NAMES.upper().split(", "))  # as Pillow names them
# The most pixels of a stranger's picture: a photograph of a telephone passes, a decompression bomb does not.
MOST_PIXELS = 50_000_000


def decoded(file: Any, size: int | None, channels: int) -> torch.Tensor:
    """The pixels of one picture's file, as ``pixels_of`` gives them."""
    return pixels_of(open_picture(file, "RGB" if channels == 3 else "L"), size)


def pixels_of(picture: Image, size: int | None = None) -> torch.Tensor:
    """The pixels of a grey or RGB picture, uint8 (channels, height, width), resized and cropped if a size is given."""
    pixels = np.array(picture if size is None else resize_and_crop(picture, size), dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).contiguous()


def open_picture(file: Path, mode: str) -> Image:
    """The decoded picture in that mode; InvalidInput, naming the file, if it is damaged, too large or not 8-bit."""
    with _opened(file) as picture:
        picture.load()
        return converted(picture, mode)


def check_picture(file: Path) -> tuple[int, int]:
    """Width and height; refuses a damaged picture. Only its header, its end and its checksums are read."""
    with _opened(file) as picture:
        size, jpeg = picture.size, picture.format == "JPEG"
        picture.verify()
    if jpeg and not _has_end(file):  # it has no checksums, so it is decoded
        open_picture(file, "RGB")
    return size


def converted(picture: Image, mode: str) -> Image:
    """The picture in that mode; a palette with transparency goes through RGBA, which avoids a warning."""
    return (picture.convert("RGBA") if "transparency" in picture.info else picture).convert(mode)


@contextmanager
def _opened(file: Path) -> Iterator[Image]:
    """Open a picture and read its header only; any failure becomes InvalidInput with the file's name."""
    from PIL import Image as pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(file) as picture:
                _check_depth(picture, file)
                yield picture
    except InvalidInput:
        raise
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as error:
        raise InvalidInput(f"{file} has too many pixels to be safe to decode ({error}): scale it down.") from error
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise InvalidInput(f"{file} cannot be decoded ({error}): replace or remove it.") from error


@contextmanager
def open_untrusted(file: Path | BinaryIO, name: str) -> Iterator[Image]:
    """Open a stranger's picture, not decoded yet: of one of FORMATS, at most MOST_PIXELS, 8 bits per channel.

    Any failure, also to decode it later on, becomes InvalidInput about ``name``.
    """
    from PIL import Image as pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(file, formats=FORMATS) as picture:
                width, height = picture.size
                if width * height > MOST_PIXELS:
                    raise InvalidInput(_too_large(name, f"{width} × {height}"))
                _check_depth(picture, name)
                yield picture
    except InvalidInput:
        raise
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as error:
        raise InvalidInput(_too_large(name, "far too many")) from error
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise InvalidInput(f"{name} is no picture ({FORMAT_NAMES}) that can be read.") from error


def _too_large(name: str, pixels: str) -> str:
    return f"{name} has {pixels} pixels; at most {MOST_PIXELS:,} are decoded: scale it down."


def _check_depth(picture: Image, name: object) -> None:
    if picture.mode[0] in "IF":
        raise InvalidInput(f"{name} has more than 8 bits per channel: save it with 8 bits.")


def resize_and_crop(picture: Image, size: int) -> Image:
    """The shortest side resized to round(size·256/224), then the central size × size pixels."""
    from PIL import Image as pillow

    factor = round(size * 256 / 224) / min(picture.size)
    # Extreme aspect ratios and tiny sizes must still cover the crop.
    width, height = (max(size, round(side * factor)) for side in picture.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return picture.resize((width, height), pillow.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _has_end(jpeg: Path) -> bool:
    """Whether the end marker of a JPEG is near the end of the file; pixel data cannot contain it."""
    with open(jpeg, "rb") as file:
        file.seek(max(0, jpeg.stat().st_size - 1024))
        return b"\xff\xd9" in file.read()
