"""Runs as a library: a whole job over a data set, into a folder, and one object to read it again."""
