"""Dataclasses from the plain JSON that `dataclasses.asdict` made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints


def made_of(kind: Any, document: Any) -> Any:
    """A value of this type; nested dataclasses, tuples and mappings are made by the types of their fields.

    Raises:
        ValueError: a dataclass is no object, or a tuple no array.
        TypeError: an object lacks a field, or has an unknown one.
    """
    if dataclasses.is_dataclass(kind):
        if not isinstance(document, Mapping):
            raise ValueError(f"expected an object with the fields of {kind}, got {document!r:.60}")
        types = get_type_hints(kind)
        return kind(**{name: made_of(types.get(name), each) for name, each in document.items()})  # type: ignore[operator]
    origin, parts = get_origin(kind), get_args(kind)
    if document is not None and type(None) in parts:
        composed = [part for part in parts if dataclasses.is_dataclass(part) or get_origin(part) is not None]
        return made_of(composed[0], document) if composed else document
    if origin is tuple:
        if not isinstance(document, list | tuple):
            raise ValueError(f"expected an array, got {document!r:.60}")
        return tuple(made_of(parts[0], each) for each in document)
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(document, Mapping):
        return {name: made_of(parts[1], each) for name, each in document.items()}
    return document
