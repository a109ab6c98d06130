"""The command `sat-tf`, which is also `python -m sat_tf`."""

import sys


def main() -> int:
    """Loads the commands and runs the one that is asked for; returns the exit status.

    Loading takes half a second, in which Ctrl-C is no error either.
    """
    try:
        from sat_tf.commands.main import main as run
    except KeyboardInterrupt:
        print("interrupted; nothing has been done", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        from sat_tf.messages import missing_package

        if (sentence := missing_package(error)) is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
