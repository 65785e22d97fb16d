"""Runs as a library: functions that process a whole data set into a folder, and ``Run``, which reads the folder."""
