"""Files of runs, written whole or not at all. Only regular files are replaced."""

import json
import math
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError

Content = str | bytes | bytearray | memoryview
"""What a file holds."""


def write_file(final: Path, content: Content) -> Path:
    """Write beside the final name, then move: a killed process leaves the old file or the new one."""
    content = content.encode("utf-8") if isinstance(content, str) else content
    # A random name: two processes may write the same file, such as the table of a sweep.
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
    try:
        if final.exists() and not final.is_file():  # a device or a pipe would become a file for everyone
            raise UserError(f"{final} is not a regular file, and will not be replaced by one.")
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
        sync(final.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise unwritten(final, error) from None
    return final


def unwritten(path: Path, error: OSError) -> UserError:
    """The message for a file that could not be written."""
    return UserError(f"{path} cannot be written ({error.strerror}); what was saved before is still whole.")


def sync(folder: Path) -> None:
    """Flush the moves themselves, so that a power failure cannot undo them."""
    with suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path, advice: str) -> None:
    """Make a folder and those above it; ``advice`` is what to do if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); {advice}.") from None


def check_out(path: Path, *, force: bool, option: str = "--out") -> None:
    """Refuse, before the work, an output file that could not be written after it."""
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a folder; make it first, or choose another {option}.")
    check_free(path, force=force, option=option)


def check_free(path: Path, *, force: bool, option: str = "--out") -> None:
    """Refuse a file that exists, unless ``force``; refuse in any case what is not a regular file."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); choose another {option}.") from None
    if stat.S_ISLNK(mode):  # the move would replace the link itself: /dev/stdout is one
        raise UserError(f"{path} is a link; name the file itself, or choose another {option}.")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file; choose another {option}.")
    if not force:
        raise UserError(f"{path} exists already; replace it with --force, or choose another {option}.")


def as_json(value: Any) -> str:
    """The text of a JSON file; numbers that are not finite become null, as JSON has no word for them."""
    return json.dumps(finite(value), indent=2, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The value with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_own(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where it is missing or is something else."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_own(path: Path) -> bool:
    """Whether a JSON file says that this program wrote it."""
    return read_own(path).get("program") == "bayesrnn"
