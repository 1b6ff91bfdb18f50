"""Decode image files to uint8 tensors."""

from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from holdfast.core.errors import BadInput


def decode_image(file: Path | BinaryIO, size: int, *, where: str = "") -> Tensor:
    """Decode an image with its EXIF orientation to uint8 (3, size, size); errors name the path, or else `where`."""
    try:
        with Image.open(file) as image:
            image = _rgb(ImageOps.exif_transpose(image))
            image = image.resize((size, size), Image.Resampling.BILINEAR)
            return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()  # (3, size, size)
    except Exception as error:  # a corrupt file can make the decoders raise any exception
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
