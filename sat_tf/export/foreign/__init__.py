"""Files of other tools: operators that sat-tf does not write, and forms that it does not write."""
