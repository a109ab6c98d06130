"""sat-tf."""
