"""Who may read: a token unless on this machine alone, known host names, headers for the browser.

The application reads, but for one action: a POST to `/studies/NAME/cancel`. Another site could
make a browser send that, so it must come from a page of this server, twice proven: by what the
browser says of its origin, and by a seal that only this server's pages hold.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "thunder_tune_token"
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with less, a browser hides a form's origin from us too
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

ACTIONS = re.compile(r"/studies/[^/]+/cancel")
"""Paths at which something is done, by POST alone."""


def seal_of(key: bytes, action: str) -> str:
    """Return what a form must hold to do `action`: nobody without `key` can make it."""
    return hmac.new(key, action.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_sealed(key: bytes, action: str, given: str) -> bool:
    """Tell whether a form holds the seal of an action."""
    return hmac.compare_digest(seal_of(key, action).encode(), given.encode("utf-8", "replace"))


class Guard:
    """Refuse what may not be read, and add headers to every answer.

    Args:
        app: What it guards.
        token: Needed as a cookie, as `Authorization: Bearer TOKEN`, or once as `?token=TOKEN`,
            which sets the cookie; None: not needed.
        hosts: Names that a request may call this server by, against sites whose name is made to
            lead here; None: any, which needs a token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None = None,
        hosts: Collection[str] | None = LOCAL_NAMES,
    ) -> None:
        """Guard `app`."""
        if token is None and hosts is None:
            raise ValueError("a dashboard that answers to any name needs a token")
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer: ASGIApp = self._refusal(scope) or self._app
            if scope["method"] == "HEAD":  # the server sends no body, whatever the app makes
                scope = {**scope, "method": "GET"}
            await answer(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._hosts is not None and _name_of(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("this server has another name", 421)
        if scope["method"] not in ("GET", "HEAD"):
            if scope["method"] != "POST" or not ACTIONS.fullmatch(scope["path"]):
                return PlainTextResponse("only GET", 405, {"allow": "GET, HEAD"})
            if not _is_from_here(headers):
                return PlainTextResponse("only a page of this server may ask for that", 403)
        if self._token is None or self._has_token(headers):
            return None
        return self._entry(scope) or PlainTextResponse(
            "a token is needed: open the address that thunder-tune dashboard printed",
            401,
            {"www-authenticate": "Bearer"},
        )

    def _has_token(self, headers: Headers) -> bool:
        kind, _space, bearer = headers.get("authorization", "").partition(" ")
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return (kind.lower() == "bearer" and self._is_token(bearer)) or self._is_token(cookie)

    def _entry(self, scope: Scope) -> Response | None:
        """Turn a token in the address into a cookie, and take it out of the address."""
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        if not self._is_token(dict(query).get("token", "")):
            return None
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        answer = RedirectResponse(f"{_local_path(scope)}{'?' if rest else ''}{rest}", 303)
        answer.set_cookie(COOKIE, self._token or "", httponly=True, samesite="strict")
        return answer

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(
            given.encode("utf-8", "replace"), self._token.encode()
        )


def _is_from_here(headers: Headers) -> bool:
    """Tell whether a request comes from a page of this server, or from no browser."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    is_own = origin is None or urlsplit(origin).netloc == headers.get("host", "")
    return is_own and site == "same-origin"


def _local_path(scope: Scope) -> str:
    """Return the path so that no browser reads it as another host's address."""
    return "/" + str(scope["path"]).lstrip("/\\")


def _name_of(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending
