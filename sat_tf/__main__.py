"""The command `sat-tf`, which is also `python -m sat_tf`."""

import sys

from sat_tf.interruption import Terminated, end_on_signals, ignore_signals


def main() -> int:
    """Loads the commands and runs the one that is asked for; returns the exit status.

    Loading takes half a second, in which neither Ctrl-C nor SIGTERM is an error.
    """
    try:
        end_on_signals()
        from sat_tf.commands.main import main as run
    except KeyboardInterrupt as interrupt:
        is_terminated = isinstance(interrupt, Terminated)
        said = "terminated" if is_terminated else "interrupted"
        print(f"{said}; nothing has been done", file=sys.stderr)
        return 143 if is_terminated else 130
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
