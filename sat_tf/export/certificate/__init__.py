"""The certificate: its contents, and how it is made."""
