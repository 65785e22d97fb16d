"""Reports: functions of stored results."""
