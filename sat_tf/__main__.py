"""`python -m sat_tf` is the command `sat-tf`."""

import sys

from sat_tf.commands.main import main

sys.exit(main())
