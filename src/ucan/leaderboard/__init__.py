"""A leaderboard of certified accuracy: a folder of entries, their checks, and a page made from them (docs/leaderboard.md)."""
