"""The study of a sweep: its database, its folder, and the processes that work on it."""

import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import as_given, read_json
from bayesrnn.lab.runs.files import is_own

FILE = "sweep.json"
_HEARTBEAT, _GRACE = 60, 180  # seconds between signs of life of a trial, and until a silent one counts as dead
_WAIT, _LAST_WAIT = 0.1, 10.0  # seconds between tries, doubled each time, while another process creates the tables
_RACE = ("already exists", "unique", "duplicate", "locked")


def load_optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError("bayesrnn sweep needs optuna: pip install optuna.") from None
    return optuna


@contextmanager
def quiet(optuna: Any) -> Iterator[None]:
    """Silence optuna's log, and its warning that heartbeats are experimental, which our tests cover."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(before)


def check_folder(out: Path, study: str, about: dict[str, Any]) -> None:
    """Refuse a folder with the table of another sweep."""
    path = out / FILE
    if not path.exists():
        return
    if not is_own(path):
        raise UserError(f"{path} is not a table of bayesrnn sweep and will not be replaced; choose another --out.")
    found = read_json(path)
    if how := _otherwise({key: found[key] for key in about if key in found}, json.loads(json.dumps(about))):
        raise UserError(f"{out} holds a sweep that was started {how}; choose another --out.")
    if found.get("study", study) != study:  # missing in earlier versions
        raise UserError(f"{out} holds the study {found['study']}, not {study}; choose another --out.")


def open_study(optuna: Any, url: str, name: str, about: dict[str, Any], advice: str) -> Any:
    """The study of this name, created if missing; one with other settings is refused."""
    import sqlalchemy.exc

    wait = _WAIT
    while True:
        try:
            storage = optuna.storages.RDBStorage(url, heartbeat_interval=_HEARTBEAT, grace_period=_GRACE)
            study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
            break
        except ModuleNotFoundError as error:
            raise UserError(f"This storage needs the Python package {error.name}; install it.") from None
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError) as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            # Another process is creating the tables.
            if wait < _LAST_WAIT and any(word in reason.lower() for word in _RACE):
                time.sleep(wait)
                wait *= 2
                continue
            raise UserError(
                f"The storage cannot be opened ({reason}); give an SQL URL such as sqlite:///sweep.db."
            ) from None
    plain = json.loads(json.dumps(about))
    before = study.user_attrs.get("about")
    if before is None:
        study.set_user_attr("about", plain)
    elif how := _otherwise(before, plain):
        raise UserError(f"The study {name} was started {how}; {advice}.")
    return study


_OTHER = {
    **{key: f"with another {key}" for key in ("recipe", "task", "metric", "seed")},
    "data": "with other data",
    "space": "with other values to try",
    "data_digest": "with data of the same name and other content",
}


def _otherwise(before: dict[str, Any], now: dict[str, Any]) -> str:
    """How a study's start differs from this one; empty: it does not. Earlier versions wrote no digest."""
    from bayesrnn.lab.runs.collection import flat

    before = {"data_digest": now["data_digest"], **before}
    if before == now:
        return ""
    differs = next((key for key in now if before.get(key) != now[key]), "")
    if differs == "kind":
        return f"as a {before.get('kind')}, not as a {now['kind']}"
    if differs == "settings":
        found = before.get("settings")
        old, new = flat(found if isinstance(found, dict) else {}), flat(now["settings"])
        key = next((key for key in {**old, **new} if old.get(key) != new.get(key)), "")
        shown = f" ({key}={as_given(old.get(key))}, not {as_given(new.get(key))})" if key else ""
        return f"with other settings{shown}"
    return _OTHER.get(differs, "by another version")


def machine() -> str:
    """This machine or container, within which process ids are unique."""
    try:
        place = os.readlink("/proc/self/ns/pid")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        place = boot = ""
    return f"{socket.gethostname()} {boot} {place}"


def worker() -> dict[str, Any]:
    return {"machine": machine(), "pid": os.getpid()}


def dead(process: dict[str, Any] | None) -> bool:
    """Whether a process of this machine has ended. On other machines only a missing heartbeat tells."""
    if process is None or process["machine"] != machine():
        return False
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
