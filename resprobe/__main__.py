"""`python -m resprobe` is the same as `resprobe`."""

from resprobe.cli.app import main

if __name__ == "__main__":
    main()
