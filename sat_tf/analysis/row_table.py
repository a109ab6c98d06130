"""Results that are rows of plain values: as a data frame, and as CSV."""

import abc
import csv
import os
from typing import TYPE_CHECKING, Any

from sat_tf.wholefile import written_whole

if TYPE_CHECKING:
    import pandas


class RowTable(abc.ABC):
    """A result with a row for each thing that it tells of."""

    @abc.abstractmethod
    def to_rows(self) -> list[dict[str, Any]]:
        """The rows, all with the same keys."""

    @abc.abstractmethod
    def _columns(self) -> tuple[str, ...]:
        """The keys, in order."""

    def to_frame(self) -> "pandas.DataFrame":
        """The rows as a data frame: NaN or None where something is not known."""
        import pandas

        return pandas.DataFrame(self.to_rows(), columns=list(self._columns()))

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows; the file appears whole, or not at all.

        What is None is left empty, and numbers have six digits.

        Raises:
            ValueError: the path cannot be written.
        """
        with (
            written_whole(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, list(self._columns()), lineterminator="\n")
            writer.writeheader()
            for row in self.to_rows():
                writer.writerow({name: csv_value(value) for name, value in row.items()})


def csv_value(value: Any) -> Any:
    """A value as it stands in the file."""
    return f"{value:.6g}" if isinstance(value, float) else value
