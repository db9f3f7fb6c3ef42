"""``GET /``: a page to try the server in a browser.

It is one file without any resource from elsewhere.  Its policy allows the one script and the one style that it has, by
their hashes, and requests to this server only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.responses import HTMLResponse, Response

__all__ = ["page"]


def page() -> Response:
    """The page."""
    text, policy = _page()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(text, headers=headers)


@cache
def _page() -> tuple[str, str]:
    """The text of the page, and its policy."""
    text = files(__package__).joinpath("page.html").read_text("utf-8")
    policy = [
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",  # the icon, which is empty
        *(f"{name}-src {_hash(text, name)}" for name in ("script", "style")),
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return text, "; ".join(policy)


def _hash(text: str, element: str) -> str:
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
