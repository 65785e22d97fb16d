"""`python -m ucan`: the commands, also where the package is on the path but not installed."""

from ucan.cli import main

if __name__ == "__main__":
    main()
