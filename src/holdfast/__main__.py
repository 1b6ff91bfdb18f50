"""`python -m holdfast`, which is what torchrun starts."""

from holdfast.cli import main

if __name__ == "__main__":
    main()
