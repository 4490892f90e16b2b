"""The folder a run writes to: whole files or none, and nothing of anyone else's is touched."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError

MARKER = ".unfinished"
RECORD = "record.json"


class RunFolder:
    """Claims a folder for one run.

    While the run lasts the folder holds a file ``.unfinished``; :meth:`finish` writes ``record.json`` and takes the
    marker away. Files are written beside their final name and moved there, so a killed run leaves no torn file.

    Args:
        path: the folder; made if it is not there.
        files: names of the files this run writes, the record aside. With ``force`` these, and no others, are replaced.
        force: replace the files of an earlier run, finished or not.
        resume: go on with the run that the folder holds: its files stay.

    Raises:
        UserError: the folder is not empty and ``force`` is not given, or its files are not those of an earlier run.
    """

    def __init__(self, path: str | Path, *, files: Iterable[str], force: bool = False, resume: bool = False) -> None:
        self.path = Path(path)
        if resume:
            self._resume()
            return
        own = [*files, RECORD, MARKER]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            present = {p.name for p in self.path.iterdir()}
            if present:
                self._check(present, own, force)
            # The marker goes first: from here on a killed run is recognised.
            self.write(MARKER, f"{os.getpid()}\n")
            for name in own:
                if name != MARKER and name in present:
                    (self.path / name).unlink()
                (self.path / f".{name}.tmp").unlink(missing_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UserError(f"{self.path} is a file; choose a folder with --out.") from None
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); choose another folder with --out."
            ) from None

    def _resume(self) -> None:
        if (self.path / MARKER).exists():
            return
        if self._has_record():
            raise UserError(f"{self.path} holds a finished run; there is nothing to resume.")
        raise UserError(f"{self.path} holds no run to resume; start one without --resume.")

    def _check(self, present: set[str], own: list[str], force: bool) -> None:
        unfinished, finished = MARKER in present, self._has_record()
        if not force:
            if unfinished:
                go_on = "go on with it by --resume, " if "last.safetensors" in present else ""
                raise UserError(
                    f"{self.path} holds an unfinished run; {go_on}start it over with --force, or choose another --out."
                )
            what = "a finished run" if finished else "files"
            raise UserError(f"{self.path} already holds {what}; replace it with --force, or choose another --out.")
        foreign = sorted(present & set(own))
        if foreign and not (unfinished or finished):
            raise UserError(
                f"{self.path} has a {foreign[0]} that no run of bayesrnn wrote, and it will not be replaced; "
                "choose another --out."
            )

    def _has_record(self) -> bool:
        try:
            record = json.loads((self.path / RECORD).read_text("utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(record, dict) and record.get("program") == "bayesrnn"

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one file, atomically."""
        return write_file(self.path / name, content)

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add one line of JSON to a file."""
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def finish(self, record: dict[str, Any]) -> Path:
        """Write the record and take the marker away: the run is complete."""
        final = self.write(RECORD, json.dumps({"program": "bayesrnn", **record}, indent=2) + "\n")
        (self.path / MARKER).unlink(missing_ok=True)
        return final


def write_file(final: Path, content: str | bytes) -> Path:
    """Write a whole file or leave what was there: beside its final name, then moved."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = final.with_name(f".{final.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(
            f"{final} cannot be written ({error.strerror}); what was saved before is still whole."
        ) from None
    return final
