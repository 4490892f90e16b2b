"""Downloads of files with a known checksum; an interrupted download is continued."""

import hashlib
import os
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import first_line

_BLOCK = 1 << 16
_TRIES = 3


def fetch(address: str, file: str | Path, *, sha256: str, most: int, timeout: float = 30.0) -> Path:
    """The file at the address; one that is there already stays. Until it is whole, it is kept as ``FILE.part``.

    Args:
        address: http or https.
        file: where it goes.
        sha256: checksum of the published file.
        most: bytes that it may have; a server that sends more is cut off.
        timeout: seconds without a byte after which a try is given up.

    Raises:
        UserError: it could not be fetched, is too large, or is not the published file.
    """
    final = Path(file)
    if final.exists():
        if _sha256(final) != sha256:
            raise UserError(f"{final} is there already and is not the published file; move it away first.")
        return final
    part = final.with_name(f"{final.name}.part")
    for left in reversed(range(_TRIES)):
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            _go_on(address, part, most, timeout)
            break
        except (OSError, HTTPException) as error:  # URLError and timeouts are OSErrors
            # Trying again does not change a 404.
            refused = isinstance(error, HTTPError) and error.code < 500 and error.code != 416
            if refused or not left:
                kept = f"; {part} has the part that arrived; the next call continues it" if part.exists() else ""
                raise UserError(f"{address} could not be fetched ({first_line(error)}){kept}.") from None
    if _sha256(part) != sha256:
        part.unlink()
        raise UserError(f"{address} is not the published file: its checksum is another. It was not kept.")
    os.replace(part, final)
    return final


def _go_on(address: str, part: Path, most: int, timeout: float) -> None:
    """Fetch what is missing; raises where the connection ends before the file does."""
    if not address.startswith(("https://", "http://")):
        raise UserError(f"{address} is no address to fetch from.")
    start = part.stat().st_size if part.exists() else 0
    request = Request(address, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer: Any = urlopen(request, timeout=timeout)
    except HTTPError as error:
        if error.code == 416:  # there is nothing after what we have
            if error.headers.get("Content-Range", "") == f"bytes */{start}":
                return
            part.unlink(missing_ok=True)
        raise
    with answer, open(part, "ab") as out:
        given = answer.headers.get("Content-Range", "")
        if answer.status != 206 or not given.startswith(f"bytes {start}-"):
            out.truncate(0)  # the whole file comes
            start = 0
        while block := answer.read(_BLOCK):
            start += len(block)
            if start > most:
                with suppress(OSError):
                    part.unlink()
                raise UserError(f"{address} is larger than {most:,} bytes; it is not the published file.")
            out.write(block)
        if answer.length:  # http.client: bytes that were announced and did not come
            raise HTTPException(f"the connection ended {answer.length:,} bytes too early")


def _sha256(file: Path) -> str:
    with open(file, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
