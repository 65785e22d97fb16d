"""`ucan explore`: one run before one's eyes, in a local web page."""
