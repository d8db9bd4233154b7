"""The API's description of itself, as OpenAPI has it."""

from typing import Any

TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
LANGUAGE = {**TEXT, "example": "en"}
DETECTED = {"type": "object", "properties": {"confidence": {"type": "number"}, "language": LANGUAGE}}
ERROR = {"description": "what to change", "content": {"application/json": {"schema": {"properties": {"error": TEXT}}}}}
BODIES = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"


def _operation(summary: str, answer: dict[str, Any], **parameters: dict[str, Any]) -> dict[str, Any]:
    """A path that is asked with these parameters, which are required where they have an example."""
    found = {
        "200": {"description": "the answer", "content": {"application/json": {"schema": answer}}},
        "default": ERROR,
    }
    if not parameters:
        return {"get": {"summary": summary, "responses": found}}
    required = [name for name, each in parameters.items() if "example" in each]
    schema = {"type": "object", "properties": parameters, "required": required}
    body = {"required": True, "content": {kind: {"schema": schema} for kind in BODIES}}
    return {"post": {"summary": summary, "requestBody": body, "responses": found}}


SPEC = {
    "openapi": "3.0.3",
    "info": {"title": "minitrans", "description": "LibreTranslate's API on trained models", "version": "0.1.0"},
    "paths": {
        "/translate": _operation(
            "Translate a text, or each of a list",
            {"type": "object", "properties": {"translatedText": TEXTS, "detectedLanguage": DETECTED}},
            q={**TEXTS, "example": "I love you."},
            source={**LANGUAGE, "description": "a code, or auto"},
            target={**TEXT, "example": "zh"},
            format={**TEXT, "enum": ["text", "html"], "default": "text"},
        ),
        "/detect": _operation(
            "Which language a text is in", {"type": "array", "items": DETECTED}, q={**TEXT, "example": "I love you."}
        ),
        "/languages": _operation("What can be translated into what", {"type": "array", "items": {"type": "object"}}),
        "/frontend/settings": _operation("The limit of characters, and the first languages", {"type": "object"}),
        "/health": _operation("Whether requests are taken", {"type": "object", "properties": {"status": TEXT}}),
    },
}
