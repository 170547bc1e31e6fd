"""`python -m tpcourse` is the command `tpcourse`."""

from tpcourse.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
