"""Other engines as arms of a comparison, each run by its own benchmark program."""
