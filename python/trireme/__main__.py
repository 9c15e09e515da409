"""Runs the program: `python -m trireme train ...`, or `trireme` where the package has put it."""
import os
import sys

from trireme import program


def main():
    os.execvp(program(), ["trireme", *sys.argv[1:]])


if __name__ == "__main__":
    main()
