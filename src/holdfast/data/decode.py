"""Decode image files to uint8 tensors: only common formats, with a limit on the number of pixels."""

from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.files import check_regular, open_limit

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # others, such as EPS, may start external programs
MAX_PIXELS = 178_956_970  # of one image; Pillow's own limit


def open_image(file: Path | BinaryIO) -> Image.Image:
    """Read the header of an image in one of the supported formats; a path must be a regular file."""
    if isinstance(file, Path):
        check_regular(file)
    return Image.open(file, formats=FORMATS)


def count_pixels(file: Path | BinaryIO) -> int:
    """Return the number of pixels that the header of an image states; 0 if it cannot be read."""
    try:
        with open_image(file) as image:
            return image.width * image.height
    except Image.DecompressionBombError:
        return MAX_PIXELS + 1
    except Exception:  # a corrupt file can raise any exception; `decode_image` reports it
        return 0


def decode_image(file: Path | BinaryIO, size: int, *, where: str = "") -> Tensor:
    """Decode an image with its EXIF orientation to uint8 (3, size, size); errors name the path, or else `where`."""
    try:
        with open_image(file) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"it has {image.width} x {image.height} pixels, the limit is {MAX_PIXELS}")
            image = _rgb(ImageOps.exif_transpose(image))
            image = image.resize((size, size), Image.Resampling.BILINEAR)
            # the copy is made by numpy: torch would start threads of its own in every thread that decodes
            return torch.from_numpy(np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)))  # (3, size, size)
    except Exception as error:  # a corrupt file can make the decoders raise any exception
        if limited := open_limit(error):
            raise limited from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(f"{where or file} cannot be read as an image ({reason}): replace or remove it") from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits per pixel, which convert() would clip to white
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floats; convert it to 8 bits")
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")
