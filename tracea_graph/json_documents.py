"""JSON documents: typed records that carry the version of their schema.

A document is a frozen dataclass with a field ``schema_version: Literal[N] = N``; N rises when a
field is renamed, removed or changes its meaning.  ``docs/schema`` has their JSON Schemas.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from tracea_graph.errors import UsageError

__all__ = ["Figure", "json_schema_of", "read_document", "to_json", "to_json_data"]

T = TypeVar("T")
_VERSION = "schema_version"

_NULLABLE = "nullable"
Figure = Annotated[float, msgspec.Meta(extra_json_schema={_NULLABLE: True})]
"""A number that may be infinite or NaN; JSON has null instead."""


def to_json(document: Any) -> str:
    """Return indented JSON with sorted keys; infinite and NaN figures become null."""
    return json.dumps(to_json_data(document), indent=1, sort_keys=True, allow_nan=False) + "\n"


def to_json_data(value: Any) -> Any:
    """Convert a value to data that ``json`` can write.

    Dataclasses become objects, NumPy numbers become numbers, paths become strings, and infinite or
    NaN numbers become null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json_data(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_data(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(to_json_data(v) for v in value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value if isinstance(value, int | str | None) else str(value)


def read_document(kind: type[T], data: Any, where: str, advice: str) -> T:
    """Parse JSON data as a record of type ``kind``; unknown keys are ignored.

    ``where`` names the source of the data in messages.  Raises UsageError for malformed data and
    for another schema version; its message ends with ``advice``.
    """
    if not isinstance(data, dict):
        raise UsageError(f"{where} holds no JSON object; {advice}")
    if data.get(_VERSION) != _version_of(kind):
        raise UsageError(f"{where} {_mismatch(kind, data)}; {advice}")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where} is malformed: {error}; {advice}") from error


def json_schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document."""
    schema = msgspec.json.schema(kind)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_plain_schema(schema)}


def _plain_schema(part: Any) -> Any:
    """Make figures nullable and descriptions one line."""
    if isinstance(part, list):
        return [_plain_schema(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {name: _plain_schema(one) for name, one in part.items() if name != _NULLABLE}
    if part.get(_NULLABLE) is True:
        found["type"] = ["number", "null"]
    if isinstance(found.get("description"), str):
        found["description"] = " ".join(found["description"].split())
    return found


def _version_of(kind: type) -> int:
    return int(getattr(kind, _VERSION))  # dataclass defaults are class attributes


def _mismatch(kind: type, data: Mapping[str, Any]) -> str:
    """Return how data of another schema version, or of another kind of document, is described."""
    found, wanted = data.get(_VERSION), _version_of(kind)
    if found is None:
        return f"has no {_VERSION}: an older version of this tool wrote it, or another program"
    needed = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    if 2 * sum(name in data for name in needed) < len(needed):
        return "is a document of another kind"
    by = "an older" if isinstance(found, int) and found < wanted else "another"
    return (
        f"was written by {by} version of this tool (schema version {found}, this one reads "
        f"{wanted})"
    )
