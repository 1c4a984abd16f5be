"""``python -m rbim``: the command line."""

from rbim.cli.entry_point import main

if __name__ == "__main__":
    main()
