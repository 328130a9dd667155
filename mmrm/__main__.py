"""``python -m mmrm COMMAND ...``, the same as the command ``mmrm``."""

from .cli import main

if __name__ == '__main__':
    main()
