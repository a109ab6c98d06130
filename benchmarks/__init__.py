"""What is measured: scripts that make the tables of docs/measurements/ and the paper's figures."""
