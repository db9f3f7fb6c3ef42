"""URLs: the rule ``URI`` of RFC 3986 in the package ``rfc3987``."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from urllib.parse import quote, urlencode, urlunsplit

import rfc3987
from checked_language import Language, problem_of


def parse(text: str) -> dict[str, str]:
    if text.endswith("\n"):  # its regular expression ends in $, which also matches before a line feed
        raise ValueError("a line feed at the end")
    # Letters in an ABNF grammar stand for both cases (RFC 5234, 2.3); here the package allows only one.
    return rfc3987.parse(text.replace("//[V", "//[v").replace("@[V", "@[v"), rule="URI")


def covers(text: str) -> bool:
    found = parse(text)
    # RFC 3986: an octet has no leading zero; the package allows one inside an IPv6 address.
    if re.search(r"\[[^]]*([:.]0[0-9]+\.|\.0[0-9]+\])", text):
        return False
    return found["scheme"].lower() in ("http", "https", "ftp", "ws", "wss") and bool(found.get("host"))


def documents(rng: random.Random) -> Iterator[str]:
    words = ["index", "a b", "naïve", "漢字", "x=1&y", "50%", "~user", "v1.2", "(a)", "it's", "q+r", "", "#1"]
    hosts = [
        "example.com",
        "user:secret@example.org",
        "192.0.2.7",
        "[2001:db8::1]",
        "[::ffff:192.0.2.128]",
        "xn--fsq.test",
        "a",
    ]
    while True:
        path = "/".join(["", *map(quote, rng.choices(words, k=rng.randint(0, 4)))])
        query = urlencode([(rng.choice(words), rng.choice(words)) for _ in range(rng.randint(0, 3))])
        port = rng.choice(("", "", ":80", ":65535"))
        host = rng.choice(hosts) + port
        yield urlunsplit(
            (rng.choice(("http", "https", "ftp", "ws", "wss")), host, path, query, quote(rng.choice(words)))
        )


LANGUAGE = Language(problem_of(parse, ValueError), documents, covers, alphabet='"<>\\^`{|}')
