"""The API's description of itself, in OpenAPI's format."""

from typing import Any

TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
DETECTED = {"type": "object", "properties": {"confidence": {"type": "number"}, "language": TEXT}}
BOOLEAN = {"type": "boolean"}
FORMAT = {**TEXT, "enum": ["text", "html"], "default": "text"}
CONTENT_TYPES = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"


def _path_item(summary: str, answer: dict[str, Any], **fields: dict[str, Any]) -> dict[str, Any]:
    """A path that takes these parameters by POST, or none by GET; one with a default may be left out."""
    answers = {"200": answer, "default": {"type": "object", "properties": {"error": TEXT}}}
    operation: dict[str, Any] = {"summary": summary, "responses": {}}
    for status, schema in answers.items():
        operation["responses"][status] = {"description": summary, "content": {"application/json": {"schema": schema}}}
    if fields:
        required = [name for name, schema in fields.items() if "default" not in schema]
        schema = {"type": "object", "properties": fields, "required": required}
        operation["requestBody"] = {"content": {each: {"schema": schema} for each in CONTENT_TYPES}}
    return {"post" if fields else "get": operation}


EXTRA_FIELDS = {
    "unsure": {"oneOf": [BOOLEAN, {"type": "array", "items": BOOLEAN}]},
    "unknown": {"type": "array", "items": TEXTS},
}
DETECTED_EACH = {"oneOf": [DETECTED, {"type": "array", "items": DETECTED}]}
ANSWER_FIELDS = {"translatedText": TEXTS, "detectedLanguage": DETECTED_EACH, **EXTRA_FIELDS}
TRANSLATION = {"type": "object", "properties": ANSWER_FIELDS}
TRANSLATE_ARGS = {"q": TEXTS, "source": TEXT, "target": TEXT, "format": FORMAT, "unsure": {**BOOLEAN, "default": False}}
PATHS = {
    "/translate": _path_item("Translate texts; the source may be auto", TRANSLATION, **TRANSLATE_ARGS),
    "/detect": _path_item("Find the language of a text", {"type": "array", "items": DETECTED}, q=TEXT),
    "/languages": _path_item("What can be translated into what", {"type": "array", "items": {"type": "object"}}),
    "/frontend/settings": _path_item("The limit of characters", {"type": "object"}),
    "/health": _path_item("Whether requests are taken", {"type": "object"}),
}
SPEC = {"openapi": "3.0.3", "info": {"title": "minitrans", "version": "1"}, "paths": PATHS}
