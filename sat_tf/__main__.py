"""The command `sat-tf`, which is also `python -m sat_tf`."""

import sys

from sat_tf.interruption import end_on_signals, ending_of, ignore_signals


def main() -> int:
    """Loads the commands and runs the one that is asked for; returns the exit status.

    Loading takes half a second, in which neither Ctrl-C nor SIGTERM is an error.
    """
    try:
        end_on_signals()
        from sat_tf.commands.main import main as run
    except KeyboardInterrupt as interrupt:
        word, status = ending_of(interrupt)
        print(f"{word}; nothing has been done", file=sys.stderr)
        return status
    except ModuleNotFoundError as error:
        from sat_tf.messages import missing_package

        if (sentence := missing_package(error)) is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return 2
    status = run()
    ignore_signals()
    return status


if __name__ == "__main__":
    sys.exit(main())
