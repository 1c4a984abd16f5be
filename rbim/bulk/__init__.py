"""Many operations at once."""

from rbim.bulk.fan_out import Done, Failed, fan_out

__all__ = ["Done", "Failed", "fan_out"]
