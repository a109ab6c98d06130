"""The certificate: what it holds, and how it comes about."""
