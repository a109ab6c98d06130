"""`python -m sat_tf` is the command `sat-tf`."""

import sys

from sat_tf.cli import main

sys.exit(main())
