"""The error tree, and others' errors in one line: every message says what is wrong and what to do. Imports nothing."""


class UcanError(Exception):
    """Base of every error that UCAN raises on purpose."""


class InvalidInput(UcanError, ValueError):
    """An argument, an input or a data file is not what the operation needs."""


class DoesNotFollow(InvalidInput):
    """A record's ``field`` contradicts the rest of it: the record was changed, or is damaged."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NoSuchName(InvalidInput, KeyError):
    """What is looked up by name is not there; the message lists what is. A KeyError, too, as of any mapping."""

    def __str__(self) -> str:
        """The message; that of a KeyError would stand in quotation marks."""
        return Exception.__str__(self)


class UnsupportedNorm(UcanError, ValueError):
    """No radius is known for this noise law and this norm."""


class SingularScale(UcanError, ValueError):
    """Σ is not invertible, so the change of variables behind the certificate does not exist."""


class ModelError(UcanError, ValueError):
    """The classifier cannot be loaded, or does not answer the way a classifier should."""


class OtherClasses(ModelError):
    """The classifier has ``found`` classes, and another number was asked for."""

    def __init__(self, message: str, found: int) -> None:
        super().__init__(message)
        self.found = found


class MissingExtra(UcanError, ImportError):
    """An optional dependency is needed; the message names the extra that installs it."""


class StoreError(UcanError, OSError):
    """A run folder cannot be read or written: damaged, foreign, locked, not permitted, or the disk is full."""


class TrainingError(UcanError, RuntimeError):
    """Training cannot start, continue or be loaded; the last good checkpoint is kept."""


class ClusterError(UcanError, RuntimeError):
    """The cluster cannot be reached, or its workers cannot do the work; stored results are kept."""


class ServiceError(UcanError, RuntimeError):
    """The service refused a request, or cannot be reached. ``status`` is that of HTTP, 0 where there was no answer."""

    def __init__(self, message: str, status: int = 0, code: str = "unreachable") -> None:
        super().__init__(message)
        self.status, self.code = status, code


def first_line(error: BaseException, otherwise: str | None = None) -> str:
    """The first line of an error's message; for an empty one ``otherwise``, by default the name of the error's class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else otherwise or type(error).__name__


def in_one_line(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error, 'no message')}"
