"""Arrays as text: numpy's own file format in base64, so that reading it back runs no code."""

from __future__ import annotations

import base64
import binascii
import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import SearcherError

Arrays = Mapping[str, NDArray[Any]]


def to_text(arrays: Arrays) -> str:
    """Write named arrays as ASCII text.

    Raises:
        ValueError: for an array of Python objects.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            entry = io.BytesIO()
            np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            dateless = zipfile.ZipInfo(name)  # equal arrays give equal text
            archive.writestr(dateless, entry.getvalue())
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def from_text(text: str) -> dict[str, NDArray[Any]]:
    """Read what `to_text` wrote.

    Raises:
        SearcherError: when the text is damaged, or holds Python objects.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(base64.b64decode(text, validate=True))) as archive:
            return {
                name: np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
            }
    except (binascii.Error, zipfile.BadZipFile, ValueError) as problem:
        raise SearcherError("searcher state: its arrays can't be read; start a new study") from problem
