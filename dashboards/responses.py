"""Responses that hold whatever the database holds: odd characters and odd numbers too."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import HTMLResponse, JSONResponse


class SafeJson(JSONResponse):
    """JSON in ASCII: a lone surrogate in a name is an escape, not an error."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - a JSON tree
        """Encode a JSON tree."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class SafeHtml(HTMLResponse):
    """HTML in UTF-8 in which what UTF-8 cannot hold is replaced."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - text
        """Encode a page."""
        return str(content).encode("utf-8", "replace")
