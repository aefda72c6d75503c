"""From what OmegaConf holds to a frozen dataclass, with every mistake as one line that names the setting. No torch."""

from __future__ import annotations

from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from methods.common.errors import ArgumentError, ConfigError

_Group = TypeVar("_Group")


def freeze(schema: type[_Group], values: Any, name: str = "") -> _Group:
    """Check one group of settings, ``name``, against its dataclass; without a name, a whole configuration.

    Raises:
        ConfigError: naming the setting, in one line.
    """
    group = f"{name}." if name else ""
    try:
        frozen = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))
    except OmegaConfBaseException as error:
        if isinstance(error.__cause__, ConfigError):
            raise _named(error.__cause__, group) from None
        setting = f"{group}{error.full_key}" if error.full_key else name or "settings"
        if isinstance(error, MissingMandatoryValue):
            raise ConfigError(f"{setting} must be given here: add {setting}=...") from None
        raise ConfigError(f"{setting}: {str(error).splitlines()[0]}") from None
    except ConfigError as error:
        raise _named(error, group) from None
    except ValueError as error:  # OmegaConf's word for a null where a group is needed
        raise ConfigError(f"{name or 'settings'}: {str(error).splitlines()[0]}") from None
    assert isinstance(frozen, schema)
    return frozen


def _named(error: ConfigError, group: str) -> ConfigError:
    """A dataclass's own refusal, with the group before the argument it begins with."""
    return ArgumentError(f"{group}{error}") if isinstance(error, ArgumentError) else error
