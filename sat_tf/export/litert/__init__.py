"""LiteRT: files run tensor by tensor, in processes of their own."""
