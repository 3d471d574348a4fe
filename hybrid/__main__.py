"""`python -m hybrid`: the `hybrid` script, where it is not on the path."""

from hybrid.cli import main

main()
