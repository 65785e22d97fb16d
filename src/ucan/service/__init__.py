"""`ucan serve`: a run's smoothed classifier over HTTP; votes of concurrent requests share forward passes (docs/serve.md)."""
